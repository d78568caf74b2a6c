#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| phalanx_targets::reduce_heard(bytes));
