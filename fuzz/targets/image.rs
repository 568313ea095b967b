//! Images: JPEG and PNG through every geometry, and the text of plans.
//!
//! The first byte chooses the plan, and the rest is the image, or the text of a plan. Where it chooses none, all is an image.

#![no_main]

use std::sync::Arc;

use forebay_core::Seed;
use forebay_data::image::{Decoder, ImagePlan};
use libfuzzer_sys::fuzz_target;

/// Small enough that no input takes long.
const PIXELS_MAX: u64 = 1 << 18;

const PLANS: [&str; 4] = [
    "rrc:8,flip",
    "resize:20,crop:16",
    "resize:9x7,float",
    "crop:33x2,normalize",
];

fuzz_target!(|bytes: &[u8]| {
    let Some((first, rest)) = bytes.split_first() else {
        return;
    };
    // What others wrote, with which a fuzzer begins, names no plan.
    let (plan, image) = PLANS.get(usize::from(*first)).map_or((&PLANS[0], bytes), |plan| (plan, rest));
    if let Ok(text) = std::str::from_utf8(rest) {
        let _ = ImagePlan::parse(text);
    }
    let plan = ImagePlan::parse(plan).expect("a good plan");
    let mut out = vec![0; plan.output_bytes()];
    let mut decoder = Decoder::new(Arc::new(plan), Seed(1), 0).with_pixels_max(PIXELS_MAX);
    let _ = decoder.decode_into(image, 1, &mut out);
});
