//! Whole HTTP/1.1 messages over a socket, for tests: heads are small, bodies fit in memory.

use std::fmt::Write as _;
use std::io;

use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};

/// A request or a reply.
#[derive(Debug, Clone, Default)]
pub(crate) struct Message {
    /// The request line or the status line.
    pub(crate) start: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Message {
    pub(crate) fn reply(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self {
            start: format!("HTTP/1.1 {status} Test"),
            headers: Vec::new(),
            body: body.into(),
        }
    }

    pub(crate) fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self
            .headers
            .iter()
            .find(|(have, _)| have.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    pub(crate) fn set(&mut self, name: &str, value: impl Into<String>) {
        self.headers.retain(|(have, _)| !have.eq_ignore_ascii_case(name));
        self.headers.push((name.to_owned(), value.into()));
    }

    pub(crate) fn method(&self) -> &str {
        self.start.split(' ').next().unwrap_or("")
    }

    /// Path and query as they came.
    pub(crate) fn target(&self) -> &str {
        self.start.split(' ').nth(1).unwrap_or("")
    }

    pub(crate) fn path(&self) -> &str {
        self.target().split('?').next().unwrap_or("")
    }

    /// The value of a query parameter, not decoded; empty when it has none.
    pub(crate) fn query(&self, name: &str) -> Option<&str> {
        let query = self.target().split_once('?')?.1;
        query.split('&').find_map(|pair| {
            let (have, value) = pair.split_once('=').unwrap_or((pair, ""));
            (have == name).then_some(value)
        })
    }

    pub(crate) fn status(&self) -> u16 {
        self.start
            .split(' ')
            .nth(1)
            .and_then(|code| code.parse().ok())
            .unwrap_or(0)
    }

    /// The head as it goes over the wire, with the headers as they are.
    pub(crate) fn head(&self) -> Vec<u8> {
        let mut head = format!("{}\r\n", self.start);
        for (name, value) in &self.headers {
            let _ = write!(head, "{name}: {value}\r\n");
        }
        head.push_str("\r\n");
        head.into_bytes()
    }

    /// Everything, with the length of the body in its header unless one is there.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut message = self.clone();
        if message.header("content-length").is_none() {
            message.set("content-length", message.body.len().to_string());
        }
        let mut bytes = message.head();
        bytes.extend_from_slice(&self.body);
        bytes
    }
}

/// Read a message; `None` when the other side closed before one began. A reply to HEAD has no body whatever its length says.
pub(crate) async fn read<R: AsyncRead + Unpin>(
    from: &mut BufReader<R>,
    has_body: bool,
) -> io::Result<Option<Message>> {
    let mut message = Message::default();
    let mut line = String::new();
    if from.read_line(&mut line).await? == 0 {
        return Ok(None);
    }
    line.trim_end().clone_into(&mut message.start);
    loop {
        line.clear();
        if from.read_line(&mut line).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let Some((name, value)) = line.trim_end().split_once(':') else {
            break;
        };
        message.headers.push((name.to_owned(), value.trim().to_owned()));
    }
    if !has_body {
        return Ok(Some(message));
    }
    if message.header("transfer-encoding") == Some("chunked") {
        message.body = read_chunks(from).await?;
        message
            .headers
            .retain(|(name, _)| !name.eq_ignore_ascii_case("transfer-encoding"));
        message.set("content-length", message.body.len().to_string());
    } else {
        let len = message
            .header("content-length")
            .and_then(|len| len.parse().ok())
            .unwrap_or(0);
        message.body.resize(len, 0);
        from.read_exact(&mut message.body).await?;
    }
    Ok(Some(message))
}

async fn read_chunks<R: AsyncRead + Unpin>(from: &mut BufReader<R>) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let mut line = String::new();
        from.read_line(&mut line).await?;
        let len = usize::from_str_radix(line.trim().split(';').next().unwrap_or(""), 16)
            .map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
        let at = body.len();
        body.resize(at + len, 0);
        from.read_exact(&mut body[at..]).await?;
        line.clear();
        from.read_line(&mut line).await?;
        if len == 0 {
            return Ok(body);
        }
    }
}
