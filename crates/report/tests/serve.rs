//! Tests of the page of a live run, requested as a browser does.

use serde_json::Value;
use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

/// Status, headers in lower case, body.
struct Answer(u16, String, String);

/// The `HOST:PORT` of `http://HOST:PORT/KEY/`, and `/KEY`.
fn parts(url: &str) -> (&str, &str) {
    let url = url.trim_start_matches("http://").trim_end_matches('/');
    url.split_at(url.find('/').unwrap())
}

/// Requests a path below the key from the server at `http://HOST:PORT/KEY/`.
fn ask(url: &str, request: &str, headers: &str) -> Answer {
    let (address, key) = parts(url);
    ask_at(address, &request.replacen('/', &format!("{key}/"), 1), headers)
}

fn ask_at(address: &str, request: &str, headers: &str) -> Answer {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    write!(stream, "{request} HTTP/1.1\r\nConnection: close\r\n{headers}\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer(status, head.to_lowercase(), body.into())
}

fn get(url: &str, path: &str, headers: &str) -> Answer {
    let (host, _) = parts(url);
    ask(url, &format!("GET {path}"), &format!("Host: {host}\r\n{headers}"))
}

/// The numbers and their version.
fn numbers(url: &str) -> (Value, String) {
    let Answer(status, head, body) = get(url, "/data", "");
    assert_eq!(status, 200, "{head}");
    let version = head.lines().find_map(|line| line.strip_prefix("etag: ")).unwrap();
    (serde_json::from_str(&body).unwrap(), version.into())
}

fn run(folder: &TempDir, name: &str) -> PathBuf {
    let run = folder.path().join(name);
    fs::create_dir(&run).unwrap();
    fs::write(run.join("config.yaml"), "train:\n  steps: 3\n").unwrap();
    run
}

fn append(run: &Path, text: &str) {
    let mut file = OpenOptions::new().create(true).append(true).open(run.join("metrics.jsonl")).unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

fn serve(runs: &[PathBuf]) -> String {
    report::serve(runs, "0").unwrap()
}

#[test]
fn a_run_is_followed_from_before_its_first_step_and_through_a_resume() {
    let folder = tempfile::tempdir().unwrap();
    let run = run(&folder, "a");
    let url = serve(std::slice::from_ref(&run));
    let (waiting, first) = numbers(&url);
    assert_eq!((&waiting["runs"][0]["step"], &waiting["runs"][0]["name"]), (&Value::Null, &"a".into()));
    let unchanged = get(&url, "/data", &format!("If-None-Match: {first}\r\n"));
    assert_eq!((unchanged.0, unchanged.2.as_str()), (304, ""));

    append(&run, "{\"step\":1,\"loss\":5}\n{\"step\":2,\"loss\":4}\n{\"step\":3,\"lo");
    let changed = get(&url, "/data", &format!("If-None-Match: {first}\r\n"));
    assert_eq!(changed.0, 200);
    let (two, second) = numbers(&url);
    assert_eq!(two["runs"][0]["series"]["loss"]["value"], serde_json::json!([5, 4]));
    assert_ne!(first, second);
    assert_eq!(get(&url, "/data", &format!("If-None-Match: {second}\r\n")).0, 304);

    append(&run, "ss\":3}\n");
    assert_eq!(numbers(&url).0["runs"][0]["step"], 3);

    let kept = "{\"step\":1,\"loss\":5}\n{\"step\":1,\"event\":\"resumed from step-1 on 2 ranks\"}\n";
    fs::write(run.join("metrics.jsonl"), kept).unwrap();
    let (resumed, _) = numbers(&url);
    assert_eq!((&resumed["runs"][0]["step"], &resumed["runs"][0]["notes"]), (&1.into(), &serde_json::json!([])));
    append(&run, "{\"step\":2,\"loss\":4.5}\n");
    assert_eq!(numbers(&url).0["runs"][0]["series"]["loss"]["value"], serde_json::json!([5, 4.5]));

    fs::create_dir_all(run.join("checkpoints/step-2")).unwrap();
    assert_eq!(numbers(&url).0["runs"][0]["checkpoints"], serde_json::json!(["step-2"]));
    fs::write(run.join("config.yaml"), "train:\n  steps: 9\n").unwrap();
    assert_eq!(numbers(&url).0["runs"][0]["steps"], 9);
}

#[test]
fn the_page_asks_its_own_server_and_nobody_else() {
    let folder = tempfile::tempdir().unwrap();
    let url = serve(&[run(&folder, "a"), run(&folder, "b")]);
    assert!(url.starts_with("http://127.0.0.1:"), "{url}");
    let Answer(status, head, page) = get(&url, "/", "");
    assert_eq!(status, 200);
    assert!(head.contains("content-type: text/html") && head.contains("cache-control: no-store"), "{head}");
    assert!(page.contains("<title>a, b</title>") && page.contains("fetch(\"data\""));
    assert!(page.contains("default-src 'none'; connect-src 'self'; ") && !page.contains("unsafe-inline"));
    let page = page.replace("http://www.w3.org/2000/svg", "");
    for outside in ["http:", "https:", "url(\"", "@import", "src=\"", "XMLHttpRequest", "innerHTML", "{{"] {
        assert!(!page.contains(outside), "{outside}");
    }
    let Answer(status, head, body) = ask(&url, "HEAD /", &format!("Host: {}\r\n", parts(&url).0));
    assert_eq!((status, body.as_str()), (200, ""), "{head}");
    assert_eq!(get(&url, "/metrics.jsonl", "").0, 404);
    assert_eq!(get(&url, "/../a/config.yaml", "").0, 404);
}

#[test]
fn other_hosts_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let url = serve(&[run(&folder, "a")]);
    let port = parts(&url).0.rsplit_once(':').unwrap().1;
    let status = |path: &str, host: &str| ask(&url, &format!("GET {path}"), &format!("Host: {host}\r\n")).0;
    for host in ["localhost", "LOCALHOST", "127.0.0.1", "[::1]"] {
        assert_eq!(status("/data", &format!("{host}:{port}")), 200, "{host}");
    }
    for host in ["evil.example", "localhost.evil.example", "127.0.0.2"] {
        for path in ["/", "/data", "/none"] {
            assert_eq!(status(path, &format!("{host}:{port}")), 403, "{host}{path}");
        }
    }
    assert_eq!((status("/", "localhost"), status("/", "localhost:1")), (403, 403), "another port is another address");
    assert_eq!(ask(&url, "GET /", "").0, 400, "no host");
}

#[test]
fn without_the_key_of_the_url_there_is_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let url = serve(&[run(&folder, "a")]);
    let (host, key) = parts(&url);
    assert!(key.len() == 33 && url.ends_with('/'), "{url}");
    let status = |path: &str| ask_at(host, &format!("GET {path}"), &format!("Host: {host}\r\n")).0;
    let other = format!("/{}", "0".repeat(32));
    for path in ["/", "/data", "/none", &other, &format!("{other}/data"), &key[..32], &format!("{}/data", &key[..32])] {
        assert_eq!(status(path), 403, "{path}");
    }
    assert_eq!((status(&format!("{key}/")), status(&format!("{key}/data?now"))), (200, 200));
    assert_eq!(status(&format!("{key}/metrics.jsonl")), 404);
    assert_ne!(parts(&serve(&[folder.path().join("a")])).1, key);
}

#[test]
fn a_pipe_in_the_place_of_a_file_blocks_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let run = run(&folder, "a");
    fs::remove_file(run.join("config.yaml")).unwrap();
    for name in ["metrics.jsonl", "config.yaml"] {
        assert!(std::process::Command::new("mkfifo").arg(run.join(name)).status().unwrap().success());
    }
    let (numbers, _) = numbers(&serve(&[run]));
    assert_eq!(numbers["runs"][0]["notes"], serde_json::json!(["metrics.jsonl: cannot be read: is no regular file"]));
}

#[test]
fn nothing_can_be_written() {
    let folder = tempfile::tempdir().unwrap();
    let url = serve(&[run(&folder, "a")]);
    let host = format!("Host: {}\r\n", parts(&url).0);
    for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"] {
        let Answer(status, head, _) = ask(&url, &format!("{method} /data"), &format!("{host}Content-Length: 0\r\n"));
        assert_eq!(status, 405, "{method}");
        assert!(head.contains("allow: get, head"), "{head}");
    }
}

#[test]
fn what_cannot_be_served_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let a = run(&folder, "a");
    let message = |runs: &[PathBuf], address: &str| report::serve(runs, address).unwrap_err().to_string();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let text = message(std::slice::from_ref(&a), &port);
    assert!(
        text.contains(&format!("127.0.0.1:{port}: ")) && text.contains("in use") && text.contains("another port"),
        "{text}"
    );
    let text = message(std::slice::from_ref(&a), "runs/a");
    assert!(text.contains("`runs/a`") && text.contains("before `--serve`"), "{text}");
    assert!(message(&[a.join("none")], "0").contains("none: no such folder"));
    assert!(message(&[], "0").contains("no run"));
    fs::write(folder.path().join("report.html"), "").unwrap();
    let url = serve(&[a, folder.path().join("report.html")]);
    let note = format!("{}: no folder, left out", folder.path().join("report.html").display());
    assert_eq!(numbers(&url).0["notes"], serde_json::json!([note]));
}
