//! PEM: keys as text between two lines. Strict in what it reads: one block, base64 and line ends.

use zeroize::Zeroizing;

/// Characters of a line.
const LINE: usize = 64;

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Text of a block.
pub(crate) fn encode(label: &str, der: &[u8]) -> String {
    let mut out = format!("-----BEGIN {label}-----\n");
    let mut column = 0;
    for group in der.chunks(3) {
        let bits = group
            .iter()
            .chain([0, 0].iter().take(3 - group.len()))
            .fold(0u32, |bits, byte| bits << 8 | u32::from(*byte));
        for place in 0..4 {
            let digit = (bits >> (18 - 6 * place)) & 63;
            let is_there = place <= group.len() as u32;
            out.push(if is_there {
                char::from(DIGITS[digit as usize])
            } else {
                '='
            });
        }
        column += 4;
        if column == LINE {
            out.push('\n');
            column = 0;
        }
    }
    if column > 0 {
        out.push('\n');
    }
    out + "-----END " + label + "-----\n"
}

/// The bytes of the block with that label; wiped when dropped, since they may be a key.
pub(crate) fn decode(label: &str, text: &str) -> Option<Zeroizing<Vec<u8>>> {
    let rest = text
        .trim_ascii()
        .strip_prefix(&format!("-----BEGIN {label}-----"))?;
    let body = rest.strip_suffix(&format!("-----END {label}-----"))?;
    let mut bytes = Zeroizing::new(Vec::with_capacity(body.len()));
    let (mut bits, mut count, mut padding) = (0u32, 0, 0);
    for byte in body.bytes().filter(|byte| !byte.is_ascii_whitespace()) {
        if byte == b'=' {
            padding += 1;
            continue;
        }
        let digit = DIGITS.iter().position(|digit| *digit == byte)? as u32;
        if padding > 0 {
            return None;
        }
        bits = bits << 6 | digit;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
            bits &= (1 << count) - 1;
        }
    }
    // What is left over is zero, and padding fills the last group.
    let digits = (bytes.len() * 8 + count as usize) / 6;
    (bits == 0 && count < 6 && (digits + padding).is_multiple_of(4)).then_some(bytes)
}
