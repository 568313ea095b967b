//! Just enough of S3 to create a bucket: one request, signed with AWS Signature Version 4, over a plain socket.
//!
//! Having it here keeps a client library out of the developer tools, and makes "the server is ready" mean that it
//! accepted a signed write.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, anyhow, bail};
use hmac::{Hmac, Mac as _};
use sha2::{Digest as _, Sha256};

use crate::servers::Access;

/// A loopback server that has not answered by then is not ready.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Answers are short XML documents; more than this is not one of them.
const REPLY_BYTES_MAX: u64 = 64 * 1024;

/// Creates a bucket; one that is there already is fine.
pub(super) fn create_bucket(access: &Access, bucket: &str) -> Result<()> {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .context("the clock is before 1970")?;
    let request = put_request(access, &format!("/{bucket}"), &amz_date(now.as_secs()));
    let reply = exchange(access.port, &request)?;
    match status_code(&reply)? {
        200..=299 => Ok(()),
        409 if reply.contains("BucketAlreadyOwnedByYou") => Ok(()),
        code => bail!(
            "creating the bucket was answered with {code}: {}",
            reply.lines().last().unwrap_or_default()
        ),
    }
}

fn exchange(port: u16, request: &str) -> Result<String> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    stream.write_all(request.as_bytes())?;
    let mut reply = Vec::new();
    stream.take(REPLY_BYTES_MAX).read_to_end(&mut reply)?;
    Ok(String::from_utf8_lossy(&reply).into_owned())
}

fn status_code(reply: &str) -> Result<u16> {
    let code = reply
        .strip_prefix("HTTP/1.1 ")
        .and_then(|rest| rest.get(..3))
        .and_then(|code| code.parse().ok());
    code.ok_or_else(|| {
        anyhow!(
            "not an HTTP answer: {:?}",
            reply.lines().next().unwrap_or_default()
        )
    })
}

/// A signed PUT without a body.
fn put_request(access: &Access, path: &str, date: &str) -> String {
    let host = format!("127.0.0.1:{}", access.port);
    let signed = Signed {
        method: "PUT",
        path,
        host: &host,
        date,
    };
    let authorization = signed.authorization(access);
    format!(
        "PUT {path} HTTP/1.1\r\nHost: {host}\r\nx-amz-date: {date}\r\nx-amz-content-sha256: {}\r\n\
         Authorization: {authorization}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        hex(&Sha256::digest(b"")),
    )
}

/// The parts of an empty-bodied request that the signature covers.
struct Signed<'a> {
    method: &'a str,
    path: &'a str,
    host: &'a str,
    date: &'a str,
}

impl Signed<'_> {
    /// Value of the `Authorization` header.
    fn authorization(&self, access: &Access) -> String {
        const HEADERS: &str = "host;x-amz-content-sha256;x-amz-date";
        let Self {
            method,
            path,
            host,
            date,
        } = self;
        let empty = hex(&Sha256::digest(b""));
        let canonical = format!(
            "{method}\n{path}\n\nhost:{host}\nx-amz-content-sha256:{empty}\nx-amz-date:{date}\n\n{HEADERS}\n{empty}"
        );
        let day = date.get(..8).unwrap_or_default();
        let scope = format!("{day}/{}/s3/aws4_request", access.region);
        let to_sign = format!(
            "AWS4-HMAC-SHA256\n{date}\n{scope}\n{}",
            hex(&Sha256::digest(canonical.as_bytes()))
        );
        let secret = format!("AWS4{}", access.secret);
        let key = [day, access.region, "s3", "aws4_request"]
            .iter()
            .fold(secret.into_bytes(), |key, part| {
                hmac_sha256(&key, part.as_bytes())
            });
        let signature = hex(&hmac_sha256(&key, to_sign.as_bytes()));
        format!(
            "AWS4-HMAC-SHA256 Credential={}/{scope}, SignedHeaders={HEADERS}, Signature={signature}",
            access.key
        )
    }
}

fn hmac_sha256(key: &[u8], message: &[u8]) -> Vec<u8> {
    // HMAC takes keys of any length, so the error type has no values in practice.
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(key) else {
        return Vec::new();
    };
    mac.update(message);
    mac.finalize().into_bytes().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Seconds since 1970 as `20130524T000000Z`.
fn amz_date(unix_s: u64) -> String {
    let (year, month, day) = civil(unix_s / 86_400);
    let second = unix_s % 86_400;
    format!(
        "{year:04}{month:02}{day:02}T{:02}{:02}{:02}Z",
        second / 3600,
        second / 60 % 60,
        second % 60
    )
}

/// Days since 1970 as year, month, day: eras of 400 years, years that begin in March so that leap days come last.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let day_of_era = days % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + days / 146_097 * 400 + u64::from(month <= 2);
    (year, month, day_of_year - (153 * shifted + 2) / 5 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_match_known_ones() {
        assert_eq!(amz_date(0), "19700101T000000Z");
        assert_eq!(amz_date(951_782_399), "20000228T235959Z");
        assert_eq!(amz_date(951_782_400), "20000229T000000Z");
        assert_eq!(amz_date(1_369_353_600), "20130524T000000Z");
        assert_eq!(amz_date(1_798_761_599), "20261231T235959Z");
    }

    /// Keys and date of the examples in the S3 documentation; the expected signature was computed with botocore 1.44
    /// (`S3SigV4Auth`).
    #[test]
    fn signature_matches_botocore() {
        let access = Access {
            port: 8333,
            key: "AKIAIOSFODNN7EXAMPLE",
            secret: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
            region: "us-east-1",
        };
        let signed = Signed {
            method: "PUT",
            path: "/forebay-test",
            host: "127.0.0.1:8333",
            date: "20130524T000000Z",
        };
        assert_eq!(
            signed.authorization(&access),
            "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, \
             SignedHeaders=host;x-amz-content-sha256;x-amz-date, Signature=28e4d4693e305b9b633068c12aecea713ca9380c8459af49bbdac58cea2cf0e6"
        );
    }

    #[test]
    fn status_is_read_and_rubbish_refused() {
        assert_eq!(status_code("HTTP/1.1 200 OK\r\n\r\n").unwrap(), 200);
        for rubbish in ["", "HTTP/1.1 ", "HTTP/1.1 abc", "SSH-2.0-x"] {
            assert!(status_code(rubbish).is_err(), "{rubbish}");
        }
    }
}
