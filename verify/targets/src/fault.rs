//! Fault rules as text, and an injector that carries them out: nothing panics, nothing is lost that was not dropped.

use crate::script::Script;
use phalanx_core::{Buf, Duration, Instant};
use phalanx_fault::{Injector, Kind, Outcome, Rule};

/// Fields and values that rules are made of, so that a script of few bytes is a rule of some depth.
const FIELDS: [&str; 16] = [
    "kind",
    "name",
    "every",
    "p",
    "with",
    "delay",
    "bits",
    "operation",
    "code",
    "deliver",
    "min_len",
    "max_len",
    "from",
    "until",
    "times",
    "burst",
];
const VALUES: [&str; 28] = [
    "\"drop\"",
    "\"delay\"",
    "\"modify\"",
    "\"reorder\"",
    "\"inject\"",
    "\"invocation\"",
    "\"operation\"",
    "\"send\"",
    "\"receive\"",
    "\"allocate\"",
    "\"unreachable\"",
    "\"until-next\"",
    "\"5ms\"",
    "\"1h\"",
    "\"storm\"",
    "{ exponential = { mean = \"2ms\" } }",
    "{ exponential = { mean = 3 } }",
    "{ uniform = { from = 1, to = 9 } }",
    "{ uniform = { from = \"9ms\", to = \"1ms\" } }",
    "{ empirical = [1, 2, 3] }",
    "{ empirical = [\"1us\", 3] }",
    "true",
    "0",
    "1",
    "7",
    "0.5",
    "-1",
    "18446744073709551615",
];

/// Text as it is, then fields and values drawn by the script.
pub fn fault_rules(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        try_rule(text, Script(bytes));
    }
    let mut script = Script(bytes);
    let kind = VALUES[script.below(7)];
    let mut text = format!("kind = {kind}\n");
    for _ in 0..script.below(8) {
        let (field, value) = (FIELDS[script.below(FIELDS.len())], VALUES[script.below(VALUES.len())]);
        text.push_str(&format!("{field} = {value}\n"));
    }
    try_rule(&text, script);
}

fn try_rule(text: &str, mut script: Script<'_>) {
    let Ok(rule) = toml::from_str::<Rule>(text) else { return };
    let written = toml::to_string(&rule).expect("a rule can be written");
    assert_eq!(toml::from_str::<Rule>(&written).as_ref(), Ok(&rule), "written as {written}");
    let mut injector = Injector::<u32>::new(7);
    let mut now = Instant(1_000);
    if injector.add(now, rule.clone()).is_err() {
        return;
    }
    let (mut given, mut taken) = (0, 0);
    while let Some(byte) = script.byte() {
        now += Duration::from_micros(u64::from(byte) * 10);
        let peer = u32::from(byte % 3);
        match byte % 4 {
            0 => {
                let mut packet = vec![byte; usize::from(byte)];
                given += 1;
                injector.receive(now, peer, &mut packet, None, &mut |_, _, _| taken += 1);
            }
            1 => {
                let outcome = injector.send(now, peer, &Buf::copy_of(&[byte; 40]));
                if outcome == Outcome::Drop {
                    assert_eq!(rule.kind, Kind::Drop);
                }
                while injector.take_injected().is_some() {}
            }
            2 => _ = injector.allocate(now),
            _ => injector.expire(now, &mut |_, _, _| taken += 1),
        }
        assert!(taken <= given, "received from nowhere");
    }
    injector.heal_all();
    for _ in 0..2 {
        injector.expire(now, &mut |_, _, _| taken += 1);
    }
    assert_eq!((taken, injector.is_idle()), (given, true), "healing releases everything");
}
