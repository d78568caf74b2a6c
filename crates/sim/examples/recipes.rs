//! The robustness recipes at full size: `recipes NAME FIRST COUNT [paper]`, with NAME one of r2 r2hosts r3 r4out r4in r5
//! r5many lifeguard. Prints a line for each seed that is not perfect, and a summary.

use phalanx_core::Duration;
use phalanx_protocol::zone::Config;
use phalanx_sim::member::recipes::{Recipe, Size, carry_out};

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let name = args.get(1).map_or("r2", String::as_str);
    let number = |i: usize, default| args.get(i).and_then(|a| a.parse().ok()).unwrap_or(default);
    let (first, count): (u64, u64) = (number(2, 0), number(3, 10));
    let paper = args.get(4).is_some_and(|a| a == "paper");
    let profile = || if paper { Config::paper() } else { Config::lan() };
    let ms = Duration::from_millis;
    let faulty = 10;
    let rapid = |recipe, secs| vec![(recipe, 1000, Duration::from_secs(secs))];
    let runs = match name {
        "r2hosts" => rapid(Recipe::Crash { faulty, hosts: true }, 20),
        "r3" => rapid(Recipe::FlipFlop { faulty }, 200),
        "r4out" => rapid(Recipe::Lossy { faulty, part: 0.8, inward: false }, 100),
        "r4in" => rapid(Recipe::Lossy { faulty, part: 0.8, inward: true }, 100),
        "r5" => rapid(Recipe::Blackhole { pairs: 1 }, 60),
        "r5many" => rapid(Recipe::Blackhole { pairs: 30 }, 60),
        "lifeguard" => {
            let mut cells = Vec::new();
            for faulty in [1, 32] {
                for blocked in [ms(128), ms(2048), ms(8192), ms(32_768)] {
                    for interval in [ms(1), ms(16_384)] {
                        let blocked = Recipe::Blocked { faulty, blocked, interval };
                        cells.push((blocked, 128, Duration::from_secs(120)));
                    }
                }
            }
            cells
        }
        _ => rapid(Recipe::Crash { faulty, hosts: false }, 20),
    };
    for (recipe, nodes, lasting) in runs {
        let (mut fp, mut healthy, mut removed, mut flaps, mut unhealed) = (0, 0, 0, 0, 0);
        let (mut last, mut healed) = (Duration::ZERO, Duration::ZERO);
        for seed in first..first + count {
            let outcome = carry_out(recipe, &Size { nodes, seed, profile: profile(), lasting });
            if outcome.at_healthy > 0 || outcome.healed_in.is_none() {
                println!("seed {seed}: {outcome:?}");
            }
            fp += outcome.false_positives;
            healthy += outcome.at_healthy;
            removed += outcome.removed;
            flaps = flaps.max(outcome.flaps);
            unhealed += u32::from(outcome.healed_in.is_none());
            last = last.max(outcome.last.unwrap_or_default());
            healed = healed.max(outcome.healed_in.unwrap_or_default());
        }
        println!(
            "{recipe:?} x{count}: FP {fp} FP- {healthy} removed {removed} flaps<={flaps} last<={last} healed<={healed} \
             unhealed {unhealed}"
        );
    }
}
