#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| phalanx_targets::federation_heard(bytes));
