//! The page of runs that go on, over HTTP: it asks for its numbers again and again.

use crate::ReportError;
use crate::page::page;
use crate::source::Sources;
use oxhttp::Server;
use oxhttp::model::{Body, Method, Request, Response, StatusCode, header};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Serves the page of these run folders, which shows the runs while they go on, until the process ends; returns its URL. `address` is
/// PORT (of 127.0.0.1) or HOST:PORT, where port 0 is a free one. A run that has not made its first step yet is shown as waiting.
///
/// Nothing can be changed through it, and it asks nobody else for anything. A request whose `Host` is not the served address is refused:
/// else a page of another site, whose name was made to mean this machine, could read the runs.
///
/// # Errors
/// If a folder does not exist, or the address is none or is taken.
pub fn serve(runs: &[PathBuf], address: &str) -> Result<String, ReportError> {
    let (host, port) = parse(address).ok_or_else(|| ReportError::Address { address: address.into() })?;
    let runs = Sources::new(runs)?;
    let page = page(&runs.title(), None);
    let numbers = Numbers { runs, json: String::new(), version: String::new() };
    let site = Arc::new(Site { page, numbers: Mutex::new(numbers) });
    let failed = |source| ReportError::Listen { address: format!("{host}:{port}"), source };
    let ip = resolve(&host).map_err(failed)?;
    let port = listen(&site, &host, ip, port).map_err(failed)?;
    let shown = if ip.is_unspecified() { "127.0.0.1" } else { &host };
    Ok(format!("http://{shown}:{port}/"))
}

/// `8080` or `host:8080`, where the host may be `[::1]`.
fn parse(address: &str) -> Option<(String, u16)> {
    let (host, port) = address.rsplit_once(':').unwrap_or(("127.0.0.1", address));
    let is_host = |c: char| c.is_alphanumeric() || "-._[]:".contains(c);
    let valid = !host.is_empty() && host.chars().all(is_host);
    valid.then_some((host.to_lowercase(), port.parse().ok()?))
}

/// The address of a host; that of version 4 where it has several.
fn resolve(host: &str) -> io::Result<IpAddr> {
    let found: Vec<_> = format!("{host}:0").to_socket_addrs()?.map(|address| address.ip()).collect();
    let found = found.iter().find(|ip| ip.is_ipv4()).or(found.first());
    found.copied().ok_or_else(|| io::Error::other("this host has no address"))
}

/// Listens in threads of its own, and returns the port.
fn listen(site: &Arc<Site>, host: &str, ip: IpAddr, port: u16) -> io::Result<u16> {
    // The server is told its port, so a free one is found before; somebody else may take it in between.
    for tries in 0.. {
        let free = || Ok::<_, io::Error>(TcpListener::bind((ip, 0))?.local_addr()?.port());
        let on = if port == 0 { free()? } else { port };
        let hosts = ["localhost", "127.0.0.1", "[::1]", host].map(|host| format!("{host}:{on}"));
        // All of the machine's addresses are served: a number cannot be made to mean another machine.
        let served = Served { hosts, addresses: ip.is_unspecified().then_some(on) };
        let site = site.clone();
        let server = Server::new(move |request| site.answer(request, &served)).bind((ip, on));
        let server = server.with_global_timeout(PATIENCE).with_max_concurrent_connections(CONNECTIONS).spawn();
        match server {
            Err(error) if error.kind() == ErrorKind::AddrInUse && port == 0 && tries < 10 => {}
            server => return server.map(|_| on),
        }
    }
    unreachable!("the last try returns")
}

/// How long a connection may say nothing, and how many there may be.
const PATIENCE: Duration = Duration::from_secs(60);
const CONNECTIONS: usize = 64;

/// What a request's `Host` may be.
struct Served {
    hosts: [String; 4],
    /// Any address in numbers, with this port.
    addresses: Option<u16>,
}

impl Served {
    fn has(&self, host: &str) -> bool {
        let is_served = |served: &String| {
            let default_port = served.strip_suffix(":80");
            served.eq_ignore_ascii_case(host) || default_port.is_some_and(|name| name.eq_ignore_ascii_case(host))
        };
        let is_address = |port: u16| {
            let address = host.parse::<SocketAddr>();
            address.is_ok_and(|address| address.port() == port) || port == 80 && host.parse::<IpAddr>().is_ok()
        };
        self.hosts.iter().any(is_served) || self.addresses.is_some_and(is_address)
    }
}

/// What is served.
struct Site {
    page: String,
    numbers: Mutex<Numbers>,
}

/// The page's numbers as they were told last.
struct Numbers {
    runs: Sources,
    json: String,
    /// Another one for other numbers.
    version: String,
}

impl Site {
    fn answer(&self, request: &Request<Body>, served: &Served) -> Response<Body> {
        let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
        if !served.has(host) {
            let name = &served.hosts[1];
            let text = format!("This page is served as {name} only; `--serve HOST:PORT` gives it another name.\n");
            return response(StatusCode::FORBIDDEN, "text/plain; charset=utf-8", text);
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let text = "There is nothing to write to.\n".into();
            let mut refused = response(StatusCode::METHOD_NOT_ALLOWED, "text/plain; charset=utf-8", text);
            refused.headers_mut().insert(header::ALLOW, header::HeaderValue::from_static("GET, HEAD"));
            return refused;
        }
        let mut answer = match request.uri().path() {
            "/" => response(StatusCode::OK, "text/html; charset=utf-8", self.page.clone()),
            "/data" => self.numbers(request),
            _ => response(StatusCode::NOT_FOUND, "text/plain; charset=utf-8", "There is no such page.\n".into()),
        };
        if *request.method() == Method::HEAD {
            *answer.body_mut() = Body::empty();
        }
        answer
    }

    fn numbers(&self, request: &Request<Body>) -> Response<Body> {
        let mut numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = numbers.read_on() {
            return response(StatusCode::INTERNAL_SERVER_ERROR, "text/plain; charset=utf-8", error.to_string());
        }
        let has = request.headers().get(header::IF_NONE_MATCH).and_then(|versions| versions.to_str().ok());
        let mut answer = match has.is_some_and(|has| has == numbers.version) {
            true => response(StatusCode::NOT_MODIFIED, "application/json", String::new()),
            false => response(StatusCode::OK, "application/json", numbers.json.clone()),
        };
        let version = header::HeaderValue::from_str(&numbers.version).expect("digits in quotes");
        answer.headers_mut().insert(header::ETAG, version);
        answer
    }
}

impl Numbers {
    /// Reads what the runs have written since the last time.
    fn read_on(&mut self) -> serde_json::Result<()> {
        if self.runs.read_on() || self.json.is_empty() {
            self.json = self.runs.data()?;
            self.version = format!("\"{:08x}-{}\"", crc32c::crc32c(self.json.as_bytes()), self.json.len());
        }
        Ok(())
    }
}

fn response(status: StatusCode, kind: &str, text: String) -> Response<Body> {
    let response = Response::builder().status(status).header(header::CONTENT_TYPE, kind);
    let response = response.header(header::CACHE_CONTROL, "no-store").header(header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    let response = response.header(header::X_FRAME_OPTIONS, "DENY").header(header::REFERRER_POLICY, "no-referrer");
    response.body(Body::from(text)).expect("these headers are valid")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn served_everywhere_it_has_any_address_in_numbers_and_no_other_name() {
        let served = |addresses, port: u16| Served {
            hosts: ["a", "b", "c", "0.0.0.0"].map(|host| format!("{host}:{port}")),
            addresses,
        };
        let everywhere = served(Some(8080), 8080);
        for (host, expected) in [
            ("192.168.0.7:8080", true),
            ("[fe80::1]:8080", true),
            ("0.0.0.0:8080", true),
            ("192.168.0.7:8081", false),
            ("192.168.0.7", false),
            ("evil.example:8080", false),
            ("192.168.0.7.evil.example:8080", false),
            ("", false),
        ] {
            assert_eq!(everywhere.has(host), expected, "{host}");
        }
        assert!(served(Some(80), 80).has("192.168.0.7") && !served(None, 8080).has("192.168.0.7:8080"));
    }

    #[test]
    fn an_address_is_a_port_or_a_host_and_a_port() {
        let parsed = |text| parse(text).map(|(host, port)| format!("{host} {port}"));
        assert_eq!(parsed("8080").as_deref(), Some("127.0.0.1 8080"));
        assert_eq!(parsed("Box.lan:80").as_deref(), Some("box.lan 80"));
        assert_eq!(parsed("[::1]:0").as_deref(), Some("[::1] 0"));
        for none in ["runs/a", "", ":80", "host", "host:", "host:99999", "a/b:80", "x\r\ny:80", "-1"] {
            assert_eq!(parsed(none), None, "{none:?}");
        }
    }
}
