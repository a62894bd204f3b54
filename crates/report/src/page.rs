//! The page: style, script and runs in one text.

use crate::run::Run;
use serde::Serialize;
use sha2::{Digest, Sha256};

const HTML: &str = include_str!("page/page.html");
/// The style of the page, in light and dark, for pages that go with it.
pub const STYLE: &str = include_str!("page/page.css");
/// Concatenated in this order, in one scope.
const SCRIPTS: [&str; 16] = [
    include_str!("page/dom.js"),
    include_str!("page/format.js"),
    include_str!("page/ticks.js"),
    include_str!("page/tip.js"),
    include_str!("page/plots.js"),
    include_str!("page/chart.js"),
    include_str!("page/marks.js"),
    include_str!("page/pointer.js"),
    include_str!("page/save.js"),
    include_str!("page/experts.js"),
    include_str!("page/head.js"),
    include_str!("page/status.js"),
    include_str!("page/samples.js"),
    include_str!("page/pipeline.js"),
    include_str!("page/tables.js"),
    include_str!("page/page.js"),
];
/// Appended to these on a page that is served.
const LIVE: &str = include_str!("page/live.js");

#[derive(Serialize)]
struct Data<'a> {
    runs: &'a [Run],
    notes: &'a [String],
}

/// The JSON that the page's script reads.
pub(crate) fn data(runs: &[Run], notes: &[String]) -> serde_json::Result<String> {
    serde_json::to_string(&Data { runs, notes })
}

/// The page with this data, or, without any, a page that polls the server for it.
pub(crate) fn page(title: &str, data: Option<&str>) -> String {
    let in_page = in_script(data.unwrap_or("null"));
    let live = if data.is_none() { LIVE } else { "" };
    let script = ["\n(() => {\n\"use strict\";\n", &SCRIPTS.concat(), live, "})();\n"].concat();
    // Split by name instead of replaced one by one, so that text from files is never searched.
    let mut page = String::with_capacity(HTML.len() + in_page.len() + 80_000);
    for part in HTML.split_inclusive("}}") {
        let (text, name) = part.strip_suffix("}}").and_then(|part| part.rsplit_once("{{")).unwrap_or((part, ""));
        page.push_str(text);
        match name {
            "title" => page.push_str(&in_html(title)),
            "connect" if data.is_none() => page.push_str("connect-src 'self'; "),
            "css" => page.push_str(STYLE),
            // The policy allows exactly the style and script of the page, and nothing that is injected into it.
            "css-hash" => page.push_str(&hash(STYLE)),
            "js-hash" => page.push_str(&hash(&script)),
            "data" => page.push_str(&in_page),
            "js" => page.push_str(&script),
            _ => {}
        }
    }
    page
}

/// The digest by which a page's policy allows an inline script or style.
fn hash(text: &str) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digest = Sha256::digest(text);
    let digits = digest.chunks(3).map(|bytes| {
        let bits = bytes.iter().fold(0u32, |bits, &byte| bits << 8 | u32::from(byte)) << (8 * (3 - bytes.len()));
        let digit = |place: usize| match place <= bytes.len() {
            true => char::from(DIGITS[(bits >> (18 - 6 * place) & 63) as usize]),
            false => '=',
        };
        String::from_iter((0..4).map(digit))
    });
    format!("sha256-{}", digits.collect::<String>())
}

/// JSON that neither ends a script element nor opens a comment in one.
fn in_script(json: &str) -> String {
    // These characters occur only in strings, where JSON reads the escape as the character.
    json.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
}

fn in_html(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_that_of_the_standard() {
        // From the specification of Content-Security-Policy.
        assert_eq!(hash("alert('Hello, world.');"), "sha256-qznLcsROx4GACP2dm0UCKCzCG+HiZ1guq6ZZDob/Tng=");
    }
}
