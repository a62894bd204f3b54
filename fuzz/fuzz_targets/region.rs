//! Fuzzes regions of tensors, as an index may contain them.
#![no_main]

use checkpoint::Region;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Ok((region, shape)) = serde_json::from_slice::<(Region, Vec<usize>)>(bytes) else { return };
    if region.fits(&shape) {
        let len = region.len();
        region.is_empty();
        let range = len / 3..(len / 3 + 1000).min(len);
        let elements: usize = region.runs(&shape, range.clone()).into_iter().map(|run| run.len()).sum();
        assert_eq!(elements, range.len());
    }
});
