//! The page: its style, its script and the runs in one text.

use crate::run::Run;
use serde::Serialize;

const HTML: &str = include_str!("page/page.html");
const CSS: &str = include_str!("page/page.css");
/// In this order, in one scope.
const SCRIPTS: [&str; 5] = [
    include_str!("page/format.js"),
    include_str!("page/chart.js"),
    include_str!("page/plots.js"),
    include_str!("page/experts.js"),
    include_str!("page/page.js"),
];

#[derive(Serialize)]
struct Data<'a> {
    runs: &'a [Run],
}

/// The page of these runs.
pub(crate) fn page(runs: &[Run]) -> Result<String, serde_json::Error> {
    let names: Vec<_> = runs.iter().map(|run| run.name.as_str()).collect();
    let title = if names.len() > 4 { format!("{} runs", names.len()) } else { names.join(", ") };
    let data = in_script(&serde_json::to_string(&Data { runs })?);
    // Split by name rather than replaced one after the other: what comes from files is never searched.
    let mut page = String::with_capacity(HTML.len() + data.len() + 60_000);
    for part in HTML.split_inclusive("}}") {
        let (text, name) = part.strip_suffix("}}").and_then(|part| part.rsplit_once("{{")).unwrap_or((part, ""));
        page.push_str(text);
        match name {
            "title" => page.push_str(&in_html(&title)),
            "css" => page.push_str(CSS),
            "data" => page.push_str(&data),
            "js" => SCRIPTS.iter().for_each(|script| page.push_str(script)),
            _ => {}
        }
    }
    Ok(page)
}

/// JSON that ends no script element and opens no comment in one.
fn in_script(json: &str) -> String {
    // These characters stand in strings only, where JSON reads the escape as the character.
    json.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
}

fn in_html(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
