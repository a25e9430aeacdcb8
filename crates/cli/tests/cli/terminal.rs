//! Ctrl-C, Ctrl-Z and `fg` on a real pty, and the live line.
//!
//! The pty is made by script(1): what is written to its input is typed on the terminal, and what the terminal shows is its
//! output.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::{PATIENCE, Running, Store, TENURE, eventually};

/// A program on a terminal of its own.
struct Terminal {
    script: Running,
    shown: String,
}

impl Terminal {
    fn run(store: &Store, command: &str) -> Self {
        let mut script = Command::new("script");
        script
            .args(["--quiet", "--return", "--flush", "--command", command, "/dev/null"])
            .env("TENURE_STORE", store.url())
            .env("TENURE", TENURE)
            .env("TERM", "xterm")
            .env_remove("NO_COLOR");
        Terminal { script: Running::start(script), shown: String::new() }
    }

    fn shell(store: &Store) -> Self {
        std::fs::write(store.path("rc"), "PS1='ready> '\n").unwrap();
        let mut terminal = Terminal::run(store, &format!("bash --rcfile {} --noediting -i", store.path("rc").display()));
        terminal.wait_for(PROMPT);
        terminal
    }

    fn type_in(&mut self, keys: &str) {
        self.script.write(keys.as_bytes());
    }

    /// Waits until this was shown since the last time, and gives what was.
    fn wait_for(&mut self, text: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.shown.push_str(&self.script.chunks());
            if let Some(at) = self.shown.find(text) {
                let rest = self.shown.split_off(at + text.len());
                return std::mem::replace(&mut self.shown, rest);
            }
            assert!(Instant::now() < deadline, "{text:?} was not shown, but {:?}", self.shown);
        }
    }
}

const PROMPT: &str = "ready> ";

#[test]
fn ctrl_c_while_waiting_gives_up() {
    let store = Store::new();
    let holder = store.hold(&["--note", "the nightly one", "x"]);
    let mut terminal = Terminal::shell(&store);
    terminal.type_in("$TENURE run x -- echo ran; echo went-on-$((1+0))\n");
    // The live line says who is in the way and who is next, and is wiped off at the end.
    let shown = terminal.wait_for("next in line");
    assert!(shown.contains("waiting for x · held by the nightly one ("), "{shown:?}");
    terminal.type_in("\x03");
    let shown = terminal.wait_for(PROMPT);
    assert!(!shown.contains("ran\r\n"), "{shown:?}");
    // As after any program that Ctrl-C ended, the shell drops the rest of the line.
    assert!(!shown.contains("went-on-1"), "{shown:?}");
    terminal.type_in("echo code=$?.\n");
    terminal.wait_for("code=130.");
    assert_eq!(store.view("x")["line"].as_array().unwrap().len(), 0);
    terminal.type_in("exit\n");
    assert_eq!(holder.end().code(), 0);
    store.assert_empty();
}

#[test]
fn the_live_line_goes_when_the_lock_comes() {
    let store = Store::new();
    let holder = store.hold(&["x"]);
    let mut terminal = Terminal::run(&store, &format!("{TENURE} run --on-lost ignore x -- echo ran"));
    terminal.wait_for("waiting for x");
    holder.end();
    let shown = terminal.wait_for("ran");
    assert!(shown.contains("\r\x1b[K"), "{shown:?}");
    assert_eq!(terminal.script.wait().code(), 0);
}

#[test]
fn ctrl_c_while_holding_is_the_command_s() {
    let store = Store::new();
    let mut terminal = Terminal::shell(&store);
    terminal
        .type_in("for i in 1 2 3; do $TENURE run x -- sh -c 'echo round-$((i+0)) in; exec sleep 1000'; done; echo over\n");
    terminal.wait_for("round-0 in");
    terminal.type_in("\x03");
    terminal.wait_for(PROMPT);
    // As without tenure, the whole loop is over, and the shell has its terminal back.
    terminal.type_in("echo code=$?.\n");
    terminal.wait_for("code=130.");
    store.assert_empty();
    terminal
        .type_in("$TENURE run x -- sh -c 'trap \"echo caught; exit 3\" INT; echo in-again; while :; do sleep 0.05; done'\n");
    terminal.wait_for("in-again\r\n");
    terminal.type_in("\x03");
    terminal.wait_for("caught\r\n");
    terminal.wait_for(PROMPT);
    terminal.type_in("echo code=$?.\n");
    terminal.wait_for("code=3.");
    terminal.type_in("exit\n");
    store.assert_empty();
}

#[test]
fn ctrl_z_and_fg() {
    let store = Store::new();
    let mut terminal = Terminal::shell(&store);
    terminal.type_in("$TENURE run x -- sh -c 'echo in-$((1+0)); read line; echo got-$line; read line; echo got-$line'\n");
    terminal.wait_for("in-1\r\n");
    terminal.type_in("\x1a");
    terminal.wait_for("Stopped");
    terminal.wait_for(PROMPT);
    assert_eq!(store.holders("x"), 1, "stopped, it still holds");
    terminal.type_in("fg\n");
    terminal.wait_for("TENURE run x");
    terminal.type_in("one\n");
    terminal.wait_for("got-one");
    terminal.type_in("two\n");
    terminal.wait_for("got-two");
    terminal.wait_for(PROMPT);
    terminal.type_in("echo code=$?.\n");
    terminal.wait_for("code=0.");
    terminal.type_in("exit\n");
    eventually("it is free", || store.holders("x") == 0);
}

/// Whether a process runs, and its group is the terminal's foreground: before that, the shell would take what is typed.
fn has_the_terminal(pid: u64) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit_once(')').map(|(_, rest)| rest.split_whitespace().collect()).unwrap_or_default();
    // state, parent, group, session, terminal, the terminal's foreground group
    matches!(fields[..], [state, _, group, _, _, front, ..] if state != "T" && group == front)
}

#[test]
fn ctrl_z_and_ctrl_c_reach_what_the_command_left() {
    let store = Store::new();
    let mut terminal = Terminal::shell(&store);
    // A shell's background job does not mind Ctrl-C, and so the grace counts.
    let leave_one = "$TENURE run --grace 100ms x -- sh -c 'sleep 1000 &'";
    terminal.type_in(&format!("{leave_one}\n"));
    terminal.wait_for("waiting for what it started: sleep");
    terminal.type_in("\x1a");
    terminal.wait_for("Stopped");
    terminal.wait_for(PROMPT);
    terminal.type_in("fg\n");
    let tenure = store.view("x")["holders"][0]["pid"].as_u64().unwrap();
    eventually("it is in the foreground and runs", || has_the_terminal(tenure));
    terminal.type_in("\x03");
    terminal.wait_for(PROMPT);
    store.assert_empty();
    terminal.type_in(&format!("for i in 1 2; do echo round-$((i+0)); {leave_one}; done\n"));
    terminal.wait_for("round-1");
    terminal.wait_for("waiting for what it started: sleep");
    terminal.type_in("\x03");
    let shown = terminal.wait_for(PROMPT);
    assert!(!shown.contains("round-2"), "the loop is over: {shown:?}");
    terminal.type_in("echo code=$?.\n");
    terminal.wait_for("code=130.");
    store.assert_empty();
    terminal.type_in("exit\n");
}

#[test]
fn ctrl_z_while_waiting() {
    let store = Store::new();
    let holder = store.hold(&["x"]);
    let mut terminal = Terminal::shell(&store);
    terminal.type_in("$TENURE run --on-lost ignore x -- echo ran-$((1+0))\n");
    terminal.wait_for("next in line");
    terminal.type_in("\x1a");
    terminal.wait_for("Stopped");
    terminal.type_in("fg\n");
    terminal.wait_for("waiting for x");
    holder.end();
    terminal.wait_for("ran-1");
    terminal.type_in("exit\n");
    eventually("it is free", || store.holders("x") == 0);
}

#[test]
fn tables_and_colours_are_for_terminals() {
    let store = Store::new();
    let holder = store.hold(&["--note", "the nightly one", "jobs/a"]);
    let mut terminal = Terminal::shell(&store);
    terminal.type_in("$TENURE ls; NO_COLOR=1 $TENURE ls; echo done-$((1+0))\n");
    let shown = terminal.wait_for("done-1");
    let rows: Vec<&str> = shown.lines().filter(|line| line.contains("the nightly one")).collect();
    assert!(rows[0].contains("\x1b[1mjobs/a"), "{rows:?}");
    assert!(rows[1].starts_with("jobs/a  mutex  exclusive"), "{rows:?}");
    terminal.type_in("$TENURE break jobs/a\n");
    terminal.wait_for("[y/N]");
    terminal.type_in("n\n");
    terminal.wait_for("nothing was broken");
    assert_eq!(store.holders("jobs/a"), 1);
    terminal.type_in("$TENURE break jobs/a\n");
    terminal.wait_for("[y/N]");
    terminal.type_in("y\n");
    terminal.wait_for("broke the hold on jobs/a");
    assert_eq!(holder.wait().code(), 124);
    terminal.type_in("exit\n");
    store.assert_empty();
}

#[test]
fn a_pipe_is_told_once_and_not_before_a_second() {
    let store = Store::new();
    let holder = store.hold(&["x"]);
    let started = Instant::now();
    let waiter = store.queue(&["x"], "x");
    waiter.expect_on_stderr("waiting");
    assert!(started.elapsed() >= Duration::from_secs(1));
    holder.end();
    waiter.expect_line("in");
    let ended = waiter.end();
    assert_eq!(ended.stderr.matches("waiting").count(), 1, "{ended:?}");
    assert!(ended.stderr.starts_with("tenure: waiting for x, held by sh ("), "{ended:?}");
}
