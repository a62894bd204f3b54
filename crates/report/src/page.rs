//! The page: its style, its script and the runs in one text.

use crate::run::Run;
use serde::Serialize;

const HTML: &str = include_str!("page/page.html");
const CSS: &str = include_str!("page/page.css");
/// In this order, in one scope.
const SCRIPTS: [&str; 12] = [
    include_str!("page/dom.js"),
    include_str!("page/format.js"),
    include_str!("page/ticks.js"),
    include_str!("page/tip.js"),
    include_str!("page/plots.js"),
    include_str!("page/chart.js"),
    include_str!("page/marks.js"),
    include_str!("page/pointer.js"),
    include_str!("page/experts.js"),
    include_str!("page/head.js"),
    include_str!("page/tables.js"),
    include_str!("page/page.js"),
];
/// After these, on a page that is served.
const LIVE: &str = include_str!("page/live.js");

#[derive(Serialize)]
struct Data<'a> {
    runs: &'a [Run],
    notes: &'a [String],
}

/// What the page's script reads.
pub(crate) fn data(runs: &[Run], notes: &[String]) -> serde_json::Result<String> {
    serde_json::to_string(&Data { runs, notes })
}

/// The page with these data, or without any one that asks the server for them, again and again.
pub(crate) fn page(title: &str, data: Option<&str>) -> String {
    let in_page = in_script(data.unwrap_or("null"));
    // Split by name rather than replaced one after the other: what comes from files is never searched.
    let mut page = String::with_capacity(HTML.len() + in_page.len() + 80_000);
    for part in HTML.split_inclusive("}}") {
        let (text, name) = part.strip_suffix("}}").and_then(|part| part.rsplit_once("{{")).unwrap_or((part, ""));
        page.push_str(text);
        match name {
            "title" => page.push_str(&in_html(title)),
            "connect" if data.is_none() => page.push_str("connect-src 'self'; "),
            "css" => page.push_str(CSS),
            "data" => page.push_str(&in_page),
            "js" => {
                SCRIPTS.iter().for_each(|script| page.push_str(script));
                page.push_str(if data.is_none() { LIVE } else { "" });
            }
            _ => {}
        }
    }
    page
}

/// JSON that ends no script element and opens no comment in one.
fn in_script(json: &str) -> String {
    // These characters stand in strings only, where JSON reads the escape as the character.
    json.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
}

fn in_html(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
