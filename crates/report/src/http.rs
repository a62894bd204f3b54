//! The part of HTTP that a page needs: one request per connection, with a deadline, and an answer.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How long a request may take to arrive, and its answer to leave.
pub(crate) const REQUEST: Duration = Duration::from_secs(10);
const ANSWER: Duration = Duration::from_secs(60);

/// Maximum number of concurrent connections. Another one waits until one of them ends.
const CONNECTIONS: usize = 64;

/// Longest head of a request, in bytes.
const HEAD: usize = 16 << 10;

/// A request without its body.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Request {
    pub method: String,
    /// Without the part after a `?`.
    pub path: String,
    pub host: Option<String>,
    pub if_none_match: Option<String>,
}

/// The answer to a request.
#[derive(Debug)]
pub(crate) struct Answer {
    /// Status code and reason, as in `200 OK`.
    pub status: &'static str,
    pub kind: &'static str,
    pub body: Arc<str>,
    /// Name and value of an additional header.
    pub header: Option<(&'static str, String)>,
}

impl Answer {
    pub fn new(status: &'static str, kind: &'static str, body: impl Into<Arc<str>>) -> Self {
        Self { status, kind, body: body.into(), header: None }
    }
}

/// Answers requests to `listener` in background threads until the process ends. Each request must arrive within
/// `limit`, which is [`REQUEST`] except in tests.
pub(crate) fn serve(
    listener: TcpListener,
    limit: Duration,
    answer: impl Fn(&Request) -> Answer + Send + Sync + 'static,
) {
    let (answer, open) = (Arc::new(answer), Arc::new(AtomicUsize::new(0)));
    thread::spawn(move || {
        for stream in listener.incoming() {
            while open.load(Ordering::Acquire) >= CONNECTIONS {
                thread::sleep(Duration::from_millis(5));
            }
            // If files or threads run out, later connections may still succeed.
            let Ok(stream) = stream else {
                thread::sleep(Duration::from_millis(50));
                continue;
            };
            open.fetch_add(1, Ordering::AcqRel);
            let (answer, counted) = (answer.clone(), Counted(open.clone()));
            _ = thread::Builder::new().spawn(move || {
                _ = converse(&stream, limit, &*answer);
                drop(counted);
            });
        }
    });
}

/// Counts a connection until it is dropped.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

fn converse(stream: &TcpStream, limit: Duration, answer: &dyn Fn(&Request) -> Answer) -> io::Result<()> {
    let mut reader = Timed { stream, until: Instant::now() + limit };
    let request = head(&mut reader)?;
    let parsed = request.as_deref().and_then(parse);
    let only_head = parsed.as_ref().is_some_and(|request| request.method == "HEAD");
    let bad = || Answer::new("400 Bad Request", TEXT, "This is no request of a browser.\n");
    let answer = parsed.as_ref().map_or_else(bad, answer);
    let mut writer = Timed { stream, until: Instant::now() + ANSWER };
    let mut text = format!(
        "HTTP/1.1 {}\r\ncontent-type: {}\r\ncontent-length: {}\r\nconnection: close\r\ncache-control: no-store\r\n\
         x-content-type-options: nosniff\r\nx-frame-options: DENY\r\nreferrer-policy: no-referrer\r\n",
        answer.status,
        answer.kind,
        answer.body.len()
    );
    if let Some((name, value)) = &answer.header {
        text += &format!("{name}: {value}\r\n");
    }
    writer.write_all((text + "\r\n").as_bytes())?;
    if !only_head {
        writer.write_all(answer.body.as_bytes())?;
    }
    // Reads for a moment what the peer still sends; otherwise it may see a reset connection instead of the answer.
    stream.shutdown(Shutdown::Write)?;
    let mut rest = Timed { stream, until: Instant::now() + Duration::from_millis(500) };
    let mut buffer = [0; 4096];
    for _ in 0..16 {
        if rest.read(&mut buffer)? == 0 {
            break;
        }
    }
    Ok(())
}

/// The content type of plain text for humans.
pub(crate) const TEXT: &str = "text/plain; charset=utf-8";

/// The head of a request. None if it is too long or incomplete.
fn head(reader: &mut impl Read) -> io::Result<Option<String>> {
    let (mut bytes, mut buffer) = (Vec::new(), [0; 1024]);
    while !bytes.windows(4).any(|end| end == b"\r\n\r\n") {
        let read = reader.read(&mut buffer)?;
        if read == 0 || bytes.len() + read > HEAD {
            return Ok(None);
        }
        bytes.extend_from_slice(&buffer[..read]);
    }
    Ok(String::from_utf8(bytes).ok())
}

fn parse(head: &str) -> Option<Request> {
    let (head, _) = head.split_once("\r\n\r\n")?;
    let mut lines = head.split("\r\n");
    let mut words = lines.next()?.split(' ');
    let (method, target, version) = (words.next()?, words.next()?, words.next()?);
    if words.next().is_some() || !version.starts_with("HTTP/1.") || !target.starts_with('/') {
        return None;
    }
    let path = target.split('?').next()?.into();
    let mut request = Request { method: method.into(), path, ..Request::default() };
    for line in lines {
        let (name, value) = line.split_once(':')?;
        let field = match &name.to_ascii_lowercase()[..] {
            "host" => &mut request.host,
            "if-none-match" => &mut request.if_none_match,
            _ => continue,
        };
        if field.replace(value.trim().into()).is_some() {
            return None; // twice
        }
    }
    request.host.is_some().then_some(request)
}

/// A stream whose reads and writes fail after a deadline.
struct Timed<'a> {
    stream: &'a TcpStream,
    until: Instant,
}

impl Timed<'_> {
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        (&mut &*self.stream).read(buffer)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        (&mut &*self.stream).write(buffer)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_a_line_and_a_host() {
        let parsed = parse("GET /a/data?x=1 HTTP/1.1\r\nhOST:  a:1 \r\nX: y\r\nIf-None-Match: \"7\"\r\n\r\n").unwrap();
        let expected = Request {
            method: "GET".into(),
            path: "/a/data".into(),
            host: Some("a:1".into()),
            if_none_match: Some("\"7\"".into()),
        };
        assert_eq!(parsed, expected);
        for none in [
            "GET / HTTP/1.1\r\n\r\n",
            "GET / HTTP/2\r\nHost: a\r\n\r\n",
            "GET a HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET / x HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
            "GET / HTTP/1.1\r\nHost a\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\n",
            "\r\n\r\n",
        ] {
            assert_eq!(parse(none), None, "{none:?}");
        }
        assert_eq!(head(&mut &vec![b'a'; HEAD + 1][..]).unwrap(), None);
        assert_eq!(head(&mut &b"GET"[..]).unwrap(), None);
    }

    #[test]
    fn connections_that_say_little_end_and_do_not_keep_others_out_for_long() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        serve(listener, Duration::from_secs(1), |_| Answer::new("200 OK", TEXT, "here"));
        let slow: Vec<_> = (0..CONNECTIONS).map(|_| TcpStream::connect(address).unwrap()).collect();
        // A byte every 100 ms for a minute, so that only a limit on the whole request ends these connections.
        thread::spawn(move || {
            for _ in 0..600 {
                slow.iter().for_each(|mut stream| _ = stream.write_all(b"G"));
                thread::sleep(Duration::from_millis(100));
            }
        });
        let mut other = TcpStream::connect(address).unwrap();
        other.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        other.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        let mut text = String::new();
        other.read_to_string(&mut text).unwrap();
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n") && text.ends_with("\r\n\r\nhere"), "{text}");
    }
}
