//! Serves the page of live runs over HTTP. The page polls for its numbers.

use crate::ReportError;
use crate::http::{self, Answer, Request, TEXT};
use crate::page::page;
use crate::source::Sources;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// Serves a page that follows these run folders until the process ends, and returns its URL. `address` is PORT (on
/// 127.0.0.1) or HOST:PORT; port 0 picks a free one. A run that has not made its first step yet is shown as waiting.
///
/// The URL contains a key that differs each time: without it, no request is answered, not even from this machine. The
/// page cannot change anything and requests nothing from other hosts. A request whose `Host` is not the served address
/// is refused; otherwise, a page from another site could try by making its name resolve to this machine.
///
/// # Errors
/// If a folder does not exist, the address is invalid or taken, or the system has no random numbers.
pub fn serve(runs: &[PathBuf], address: &str) -> Result<String, ReportError> {
    let (host, port) = parse(address).ok_or_else(|| ReportError::Address { address: address.into() })?;
    let runs = Sources::new(runs)?;
    let page = page(&runs.title(), None).into();
    let numbers = Numbers { runs, json: "".into(), version: String::new() };
    let failed = |source| ReportError::Listen { address: format!("{host}:{port}"), source };
    let site = Site { key: key().map_err(failed)?, page, numbers: Mutex::new(numbers) };
    let key = site.key.clone();
    let ip = resolve(&host).map_err(failed)?;
    let port = listen(site, &host, ip, port).map_err(failed)?;
    let shown = if ip.is_unspecified() { "127.0.0.1" } else { &host };
    Ok(format!("http://{shown}:{port}/{key}/"))
}

/// 128 random bits in hexadecimal digits.
fn key() -> io::Result<String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| io::Error::other(format!("no random numbers: {error}")))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Parses `8080` or `host:8080`. The host may be `[::1]`.
fn parse(address: &str) -> Option<(String, u16)> {
    let (host, port) = address.rsplit_once(':').unwrap_or(("127.0.0.1", address));
    let is_host = |c: char| c.is_alphanumeric() || "-._[]:".contains(c);
    let valid = !host.is_empty() && host.chars().all(is_host);
    valid.then_some((host.to_lowercase(), port.parse().ok()?))
}

/// The IP address of a host, preferably an IPv4 one.
fn resolve(host: &str) -> io::Result<IpAddr> {
    let found: Vec<_> = format!("{host}:0").to_socket_addrs()?.map(|address| address.ip()).collect();
    let found = found.iter().find(|ip| ip.is_ipv4()).or(found.first());
    found.copied().ok_or_else(|| io::Error::other("this host has no address"))
}

/// Listens in background threads and returns the port.
fn listen(site: Site, host: &str, ip: IpAddr, port: u16) -> io::Result<u16> {
    let listener = TcpListener::bind((ip, port))?;
    let on = listener.local_addr()?.port();
    let hosts = ["localhost", "127.0.0.1", "[::1]", host].map(|host| format!("{host}:{on}"));
    // All addresses of the machine are served. A numeric address cannot be made to resolve to another machine.
    let served = Served { hosts, addresses: ip.is_unspecified().then_some(on) };
    http::serve(listener, http::REQUEST, move |request| site.answer(request, &served));
    Ok(on)
}

/// The accepted values of a request's `Host`.
struct Served {
    hosts: [String; 4],
    /// Also accepts any numeric address with this port.
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
    key: String,
    page: Arc<str>,
    numbers: Mutex<Numbers>,
}

/// The page's latest numbers.
struct Numbers {
    runs: Sources,
    json: Arc<str>,
    /// Changes with the numbers.
    version: String,
}

impl Site {
    fn answer(&self, request: &Request, served: &Served) -> Answer {
        if !served.has(request.host.as_deref().unwrap_or_default()) {
            let name = &served.hosts[1];
            let text = format!("This page is served as {name} only; `--serve HOST:PORT` gives it another name.\n");
            return Answer::new("403 Forbidden", TEXT, text);
        }
        if !["GET", "HEAD"].contains(&&request.method[..]) {
            let refused = Answer::new("405 Method Not Allowed", TEXT, "There is nothing to write to.\n");
            return Answer { header: Some(("allow", "GET, HEAD".into())), ..refused };
        }
        let (key, page) = request.path[1..].split_once('/').unwrap_or((&request.path[1..], "none"));
        if !is_same(key, &self.key) {
            let text = "The address of this page has a key: take the whole URL that the server has printed.\n";
            return Answer::new("403 Forbidden", TEXT, text);
        }
        match page {
            "" => Answer::new("200 OK", "text/html; charset=utf-8", self.page.clone()),
            "data" => self.numbers(request),
            _ => Answer::new("404 Not Found", TEXT, "There is no such page.\n"),
        }
    }

    fn numbers(&self, request: &Request) -> Answer {
        let mut numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = numbers.read_on() {
            return Answer::new("500 Internal Server Error", TEXT, error.to_string());
        }
        let answer = match request.if_none_match.as_ref() == Some(&numbers.version) {
            true => Answer::new("304 Not Modified", "application/json", ""),
            false => Answer::new("200 OK", "application/json", numbers.json.clone()),
        };
        Answer { header: Some(("etag", numbers.version.clone())), ..answer }
    }
}

/// Compares in time that does not depend on where the strings differ.
fn is_same(given: &str, key: &str) -> bool {
    let different = given.bytes().zip(key.bytes()).fold(0, |all, (a, b)| all | (a ^ b));
    given.len() == key.len() && std::hint::black_box(different) == 0
}

impl Numbers {
    /// Reads what the runs have written since the last time.
    fn read_on(&mut self) -> serde_json::Result<()> {
        if self.runs.read_on() || self.json.is_empty() {
            self.json = self.runs.data()?.into();
            self.version = format!("\"{:08x}-{}\"", crc32c::crc32c(self.json.as_bytes()), self.json.len());
        }
        Ok(())
    }
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

    #[test]
    fn a_key_is_the_same_or_is_not() {
        let own = key().unwrap();
        assert!(own.len() == 32 && own != key().unwrap());
        assert!(
            is_same(&own, &own) && !is_same("", &own) && !is_same(&own[1..], &own) && !is_same(&"0".repeat(32), &own)
        );
    }
}
