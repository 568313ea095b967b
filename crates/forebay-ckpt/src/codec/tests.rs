//! Codecs against a plain model, and hostile bytes against decoders.

use forebay_core::{Rng, Seed};
use proptest::prelude::*;

use super::*;

const ALL: [Compress; 4] = [
    Compress::Lz4,
    Compress::Zstd { level: 1 },
    Compress::Zstd { level: -5 },
    Compress::Auto,
];

/// Planes, byte by byte: slow, and plainly right.
fn planes_by_hand(raw: &[u8], width: usize, rotated: bool) -> Vec<u8> {
    let mut planes = vec![Vec::new(); width];
    for element in raw.chunks_exact(width) {
        let value = element
            .iter()
            .rev()
            .fold(0u128, |value, byte| value << 8 | u128::from(*byte));
        let bits = 8 * width as u32;
        let turned = (value << 1 | value >> (bits - 1)) & ((1 << bits) - 1);
        let value = if rotated { turned } else { value };
        for (number, plane) in planes.iter_mut().enumerate() {
            plane.push((value >> (8 * number)) as u8);
        }
    }
    planes.concat()
}

/// bf16 numbers as weights have them: normally distributed.
pub(crate) fn weights(count: usize, rng: &mut Rng) -> Vec<u8> {
    let mut uniform = || (rng.below(1 << 24) as f32 + 0.5) / (1 << 24) as f32;
    let mut bytes = Vec::with_capacity(2 * count);
    for _ in 0..count {
        let (a, b) = (uniform(), uniform());
        let normal = (-2.0 * a.ln()).sqrt() * (std::f32::consts::TAU * b).cos();
        bytes.extend_from_slice(&(normal * 0.02).to_le_bytes()[2..]);
    }
    bytes
}

fn round_trip(how: Compress, dtype: Dtype, raw: &[u8]) -> (Codec, usize) {
    let mut encoder = Encoder::new();
    // Something before, so that nothing depends on fresh memory.
    encoder.encode(how, Dtype::F32, &[1; 9000]);
    let (codec, parameter) = encoder.encode(how, dtype, raw);
    let stored = if codec == Codec::Raw { raw } else { encoder.bytes() };
    assert!(fits(codec, parameter, stored.len() as u64, raw.len() as u32));
    let mut back = vec![7; raw.len()];
    let mut decoder = Decoder::new();
    decoder.decode((codec, parameter), stored, &mut back).unwrap();
    assert_eq!(back, raw, "{how} {dtype:?}");
    (codec, stored.len())
}

#[test]
fn weights_shrink_to_two_thirds() {
    let raw = weights(512 << 10, &mut Seed(1).rng());
    let (codec, stored) = round_trip(Compress::Auto, Dtype::Bf16, &raw);
    let ratio = raw.len() as f64 / stored as f64;
    println!("bf16 weights: {ratio:.3} times");
    assert_eq!(codec, Codec::PlanesZstd);
    assert!(ratio > 1.4, "{ratio}");
    let (codec, stored) = round_trip(Compress::Lz4, Dtype::Bf16, &raw);
    assert_eq!(codec, Codec::PlanesLz4);
    assert!(raw.len() as f64 / stored as f64 > 1.15);
}

#[test]
fn noise_is_stored_as_it_is() {
    for len in [0, 1, 4096, 300_000, 1 << 20] {
        let mut raw = vec![0; len];
        Seed(2).rng().fill(&mut raw);
        for how in ALL {
            for dtype in [Dtype::Bf16, Dtype::F64, Dtype::I32, Dtype::U8] {
                assert_eq!(round_trip(how, dtype, &raw), (Codec::Raw, len), "{how} {dtype:?}");
            }
        }
    }
}

/// A run whose first sample is noise and whose rest is not is still found.
#[test]
fn samples_are_spread() {
    let mut raw = vec![3; 1 << 20];
    Seed(2).rng().fill(&mut raw[..16 << 10]);
    for how in ALL {
        let (codec, stored) = round_trip(how, Dtype::U8, &raw);
        assert_ne!(codec, Codec::Raw);
        assert!(stored < 40 << 10);
    }
}

#[test]
fn what_is_written_does_not_depend_on_what_was_before() {
    let mut rng = Seed(5).rng();
    let first = weights(4000, &mut rng);
    let second = weights(5000, &mut rng);
    for how in ALL {
        let mut used = Encoder::new();
        used.encode(how, Dtype::F32, &first);
        used.encode(how, Dtype::Bf16, &first);
        let mut fresh = Encoder::new();
        let coded = fresh.encode(how, Dtype::Bf16, &second);
        assert_eq!(used.encode(how, Dtype::Bf16, &second), coded);
        assert_eq!(used.bytes(), fresh.bytes());
    }
}

#[test]
fn names_of_compressions_come_back() {
    for how in ALL.into_iter().chain([Compress::Off]) {
        assert_eq!(how.to_string().parse::<Compress>().unwrap(), how);
    }
    assert_eq!("zstd".parse::<Compress>().unwrap(), Compress::Zstd { level: 1 });
    for bad in ["", "gzip", "zstd:", "zstd:23", "zstd:0", "lz4:1"] {
        bad.parse::<Compress>().unwrap_err();
    }
}

/// A frame that says that it has more than the record does, one that has less, and two in a row.
#[test]
fn frames_of_another_length_are_refused() {
    let mut encoder = Encoder::new();
    let raw = vec![5; 100_000];
    let how = encoder.encode(Compress::Zstd { level: 1 }, Dtype::U8, &raw);
    assert_eq!(how.0, Codec::Zstd);
    let frame = encoder.bytes().to_vec();
    let mut decoder = Decoder::new();
    for len in [99_999, 100_001, 1 << 20] {
        decoder.decode(how, &frame, &mut vec![0; len]).unwrap_err();
    }
    let twice = [&frame[..], &frame[..]].concat();
    decoder.decode(how, &twice, &mut vec![0; 200_000]).unwrap_err();
    let skippable = [&frame[..], &[0x50, 0x2a, 0x4d, 0x18, 0, 0, 0, 0]].concat();
    decoder
        .decode(how, &skippable, &mut vec![0; 100_000])
        .unwrap_err();
    decoder.decode(how, &frame, &mut vec![0; 100_000]).unwrap();
}

proptest! {
    #[test]
    fn planes_are_what_the_format_says(raw in prop::collection::vec(any::<u8>(), 0..1200), which in 0usize..3, rotated: bool) {
        let width = [2, 4, 8][which];
        let raw = &raw[..raw.len() / width * width];
        let mut planes = vec![0; raw.len()];
        planes::split(raw, width, rotated, &mut planes);
        prop_assert_eq!(&planes, &planes_by_hand(raw, width, rotated));
        let mut back = vec![9; raw.len()];
        let count = (raw.len() / width).max(1);
        let runs: Vec<&[u8]> = planes.chunks_exact(count).collect();
        if !raw.is_empty() {
            planes::join(&runs, rotated, &mut back);
        }
        prop_assert_eq!(&back[..], raw);
    }

    #[test]
    fn chunks_come_back(seed: u64, len in 0usize..20_000, values in 1u64..256, which in 0usize..4, dtype in 0..Dtype::ALL.len()) {
        let mut rng = Seed(seed).rng();
        let raw: Vec<u8> = (0..len).map(|_| rng.below(values) as u8).collect();
        round_trip(ALL[which], Dtype::ALL[dtype], &raw);
    }

    #[test]
    fn hostile_bytes_do_no_harm(seed: u64, at in 0usize..4000, byte: u8, cut in 0usize..4000, which in 0usize..4) {
        let raw = weights(4096, &mut Seed(seed).rng());
        let mut encoder = Encoder::new();
        let how = encoder.encode(ALL[which], Dtype::Bf16, &raw);
        let mut stored = encoder.bytes().to_vec();
        let (at, cut) = (at.min(stored.len() - 1), cut.min(stored.len()));
        stored[at] = byte;
        stored.truncate(stored.len() - cut);
        let mut back = vec![0; raw.len()];
        // Refused or not, it ends, within its memory.
        let _: Result<(), _> = Decoder::new().decode(how, &stored, &mut back);
    }
}
