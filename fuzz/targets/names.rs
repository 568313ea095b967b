//! What people write of data sets, and what names of objects say: patterns, decodings, policies, image plans, columns of folders, notes of packing, listings.

#![no_main]

use forebay_data::dataset::expand;
use forebay_data::image::ImagePlan;
use forebay_data::loader::{BadPolicy, Decode};
use forebay_data::pack::PackFormat;
use forebay_data::{Dtype, Unit};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(names) = expand(text) {
        assert!(text.contains('{') || names == [text]);
    }
    let _ = text.parse::<Decode>();
    let _ = text.parse::<BadPolicy>();
    let _ = ImagePlan::parse(text);
    if let Some(dtype) = Dtype::parse(text) {
        assert_eq!(Dtype::parse(dtype.name()), Some(dtype));
    }
    if let Some(format) = PackFormat::parse(text) {
        assert_eq!(format.name(), text);
    }
    if let Ok(unit) = text.parse::<Unit>() {
        assert_eq!(unit.to_string().parse::<Unit>().expect("its own name"), unit);
    }
    forebay_data::fuzz::folders(text);
    forebay_data::fuzz::listing(text);
    forebay_data::fuzz::pack_notes(text);
});
