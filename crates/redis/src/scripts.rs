//! The scripts, by name and hash.
//!
//! One script a verb, so that a verb is one step for everybody else. The text is sent once to a server and called by its
//! hash from then on; data goes in KEYS and ARGV only, so the text never changes and the server keeps one copy of it. Where
//! a script has a short way and a long one, the short one comes first and the helpers of the long one stand behind it: Lua
//! makes its functions anew at each call.

use std::sync::OnceLock;

use redis::Cmd;

/// One script.
#[derive(Debug)]
pub(crate) struct Script {
    /// Its verb.
    pub(crate) name: &'static str,
    /// Its text.
    pub(crate) text: &'static str,
    sha: OnceLock<String>,
}

impl Script {
    const fn new(name: &'static str, text: &'static str) -> Self {
        Script { name, text, sha: OnceLock::new() }
    }

    /// What the server calls it.
    pub(crate) fn sha(&self) -> &str {
        self.sha.get_or_init(|| redis::Script::new(self.text).get_hash().to_owned())
    }

    /// The beginning of a call by hash, with room for what follows.
    pub(crate) fn command(&self, keys: usize, args: usize, bytes: usize) -> Cmd {
        let mut cmd = Cmd::with_capacity(3 + keys + args, 64 + bytes);
        cmd.arg("EVALSHA").arg(self.sha()).arg(keys);
        cmd
    }

    /// Teaches it to a server.
    pub(crate) fn load(&self) -> Cmd {
        let mut cmd = redis::cmd("SCRIPT");
        cmd.arg("LOAD").arg(self.text);
        cmd
    }
}

macro_rules! scripts {
    ($($(#[$doc:meta])* $static:ident = $name:literal: $($file:literal),+;)+) => {
        $($(#[$doc])* pub(crate) static $static: Script =
            Script::new($name, concat!($(include_str!(concat!("scripts/", $file))),+));)+

        /// All of them: what a server is taught when it knows none.
        #[cfg(test)]
        pub(crate) static ALL: &[&Script] = &[$(&$static),+];
    };
}

scripts! {
    /// Lets a claim in, or puts it in line, or neither.
    ASK = "ask": "now.lua", "ask_fast.lua", "line.lua", "standing.lua", "ask.lua";
    /// Ends a claim, whatever it was.
    END = "end": "end_fast.lua", "now.lua", "end_next.lua", "line.lua", "end.lua";
    /// Extends holds.
    RENEW = "renew": "now.lua", "renew.lua";
    /// Hears from waiters.
    TOUCH = "touch": "now.lua", "line.lua", "standing.lua", "touch.lua";
    /// Makes a writer a reader.
    DOWNGRADE = "downgrade": "now.lua", "line.lua", "downgrade.lua";
    /// Asks every holder to let go.
    REQUEST = "request": "now.lua", "line.lua", "holders.lua", "request.lua";
    /// Ends holds by force.
    BREAK = "break": "now.lua", "line.lua", "holders.lua", "break.lua";
    /// Reads records.
    VIEW = "view": "now.lua", "view.lua";
    /// Writes a cell.
    CELL_SET = "cell_set": "now.lua", "cell_set.lua";
    /// Forgets names that nobody uses.
    TIDY = "tidy": "now.lua", "tidy.lua";
    /// Raises the last token.
    RAISE = "raise": "now.lua", "raise.lua";
    /// Shows a token to a fence.
    FENCE = "fence": "fence.lua";
    /// Does nothing.
    PROBE = "probe": "probe.lua";
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Servers keep scripts by these. One that changes here is another script to every server and beside every other
    /// version of this library that is in use: what both find in a record must mean the same to both.
    #[test]
    fn a_change_is_seen() {
        let now: Vec<String> = ALL.iter().map(|script| format!("{} {}", script.name, script.sha())).collect();
        assert_eq!(now, KNOWN);
    }

    const KNOWN: &[&str] = &[
        "ask d1d7416139ed01271a4eea872b0d526f5b0a5192",
        "end a39302034f172956f3969dc4a8b7163f8c15da77",
        "renew 65bfab4b937a1c98c2a6a855b839a00176c2c0a9",
        "touch 5a86e36819ba8524eceb3353d3a27c4155a2943d",
        "downgrade 50b3788a06958de6e965c0c6828f1f0e20befb45",
        "request eb5a6f8883b6329c399bcb93384d7b9410f75fef",
        "break 6e110642f13f5cf41953947eb4d3346a9f95d803",
        "view 52ba13aecdab0f83cedacdba49342642c9b8fda2",
        "cell_set 6b2df77f7bad9d145bee10fde0457dd5292a24b0",
        "tidy b72d1d0f3129b0d741b17744c41054413367611a",
        "raise ee35cae16c2db1ca9c21e5f4da618094b343945c",
        "fence 67de5c2e4781baf41e6de5a124b9d6ecf4886693",
        "probe eb2851b071a35034e8bc73a4a27d609022e58f6d",
    ];

    #[test]
    fn data_goes_in_keys_and_arguments_only() {
        for script in ALL {
            assert!(!script.text.contains("loadstring") && !script.text.contains("redis.pcall"), "{}", script.name);
            assert!(script.text.is_ascii(), "{}", script.name);
        }
    }
}
