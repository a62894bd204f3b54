//! `train config`: prints the whole configuration.

use crate::config::Config;
use crate::program;
use crate::terminal::say;

/// Prints every key with its documentation, or the configuration as JSON.
pub fn run(config: &Config, json: bool) {
    if json {
        return say(&serde_json::to_string_pretty(config).expect("a configuration is plain data"));
    }
    say(&format!(
        "# Every key: what it is for, its value, what it takes, and its default where that is another. A file of some of them will do\n\
         # for `{} --config FILE`; the others have their defaults, or with `base: preset:NAME` the preset's values.\n\n{}",
        program::name(),
        config.to_commented_yaml().trim_end()
    ));
}
