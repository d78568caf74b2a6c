//! The robustness recipes at full size: `recipes NAME FIRST COUNT [paper] [short]`, with NAME one of r2 r2hosts r3 r4out
//! r4in r5 r5many lifeguard grid, or a cell of the grid, as `"32 × 128 ms / 1 ms"`. Prints a line for each seed that is not
//! clean, and a summary.

use phalanx_core::Duration;
use phalanx_protocol::zone::Config;
use phalanx_sim::member::recipes::{Published, Size, carry_out, lifeguard, rapid};

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let name = args.get(1).map_or("r2", String::as_str);
    let number = |i: usize, default| args.get(i).and_then(|a| a.parse().ok()).unwrap_or(default);
    let (first, count): (u64, u64) = (number(2, 0), number(3, 10));
    let asked = |word: &str| args.iter().skip(4).any(|a| a == word);
    let (paper, short) = (asked("paper"), asked("short"));
    let profile = || if paper { Config::paper() } else { Config::lan() };
    let runs: Vec<Published> = match name {
        "lifeguard" => lifeguard(false),
        "grid" => lifeguard(true),
        _ => rapid(short).into_iter().chain(lifeguard(true)).filter(|p| p.name == name).collect(),
    };
    for Published { name, recipe, nodes, lasting } in runs {
        let (mut fp, mut healthy, mut removed, mut flaps, mut views, mut unhealed) = (0, 0, 0, 0, 0, 0);
        let (mut last, mut healed) = (Duration::ZERO, Duration::ZERO);
        for seed in first..first + count {
            let size = Size { nodes, seed, profile: profile(), lasting, most_events: u64::MAX };
            let outcome = carry_out(recipe, &size);
            if !outcome.is_clean() {
                println!("seed {seed}: {outcome:?}");
            }
            fp += outcome.false_positives;
            healthy += outcome.at_healthy;
            removed += outcome.removed;
            flaps = flaps.max(outcome.flaps);
            views = views.max(outcome.views);
            unhealed += u32::from(outcome.healed_in.is_none());
            last = last.max(outcome.last.unwrap_or_default());
            healed = healed.max(outcome.healed_in.unwrap_or_default());
        }
        println!(
            "{name} x{count}: FP {fp} FP- {healthy} removed {removed} flaps<={flaps} views<={views} last<={last} \
             healed<={healed} unhealed {unhealed}"
        );
    }
}
