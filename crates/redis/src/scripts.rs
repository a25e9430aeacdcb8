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
    ASK = "ask": "now.lua", "ask_fast.lua", "line.lua", "ask.lua";
    /// Ends a claim, whatever it was.
    END = "end": "end_fast.lua", "now.lua", "line.lua", "end.lua";
    /// Extends holds.
    RENEW = "renew": "now.lua", "renew.lua";
    /// Hears from waiters.
    TOUCH = "touch": "now.lua", "line.lua", "touch.lua";
    /// Changes the mode of a hold.
    CONVERT = "convert": "now.lua", "line.lua", "convert.lua";
    /// Asks every holder to let go.
    REQUEST = "request": "now.lua", "line.lua", "request.lua";
    /// Ends holds by force.
    BREAK = "break": "now.lua", "line.lua", "break.lua";
    /// Reads records.
    VIEW = "view": "now.lua", "view.lua";
    /// Writes a cell.
    CELL_SET = "cell_set": "now.lua", "cell_set.lua";
    /// Forgets names that nobody uses.
    TIDY = "tidy": "now.lua", "tidy.lua";
    /// Raises the last token.
    RAISE = "raise": "now.lua", "raise.lua";
    /// Does nothing.
    PROBE = "probe": "probe.lua";
}
