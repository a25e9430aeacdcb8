//! A stderr that is a full pipe, which nobody reads: it stops nothing.

use std::fs::File;
use std::io::{PipeReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Child, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::support::{Store, eventually, lives, pid};

const O_NONBLOCK: i32 = 0o4000;

/// A `tenure run` whose stderr is a pipe with no room left.
struct Unread {
    process: Child,
    /// The pipe's end that is not read.
    stderr: PipeReader,
    /// How much was in the pipe before.
    filled: usize,
    /// What its command printed first: its pid.
    command: Pid,
}

impl Unread {
    /// The command says its pid, and runs on until it is stopped or its input ends. It writes nothing to stderr.
    fn start(store: &Store, flags: &[&str]) -> Self {
        let (reader, writer) = std::io::pipe().unwrap();
        // Another open file of the same pipe: the one that tenure gets blocks, as a shell's pipe does.
        let filler = format!("/proc/self/fd/{}", writer.as_raw_fd());
        let mut filler = File::options().write(true).custom_flags(O_NONBLOCK).open(filler).unwrap();
        let mut filled = 0;
        for size in [4096, 1] {
            while let Ok(written) = filler.write(&vec![b'#'; size]) {
                filled += written;
            }
        }
        let args = [&["run"], flags, &["x", "--", "sh", "-c", "echo $$; exec cat"]].concat();
        let mut process = store.command(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(writer).spawn().unwrap();
        let mut line = Vec::new();
        let stdout = process.stdout.as_mut().unwrap();
        while !line.ends_with(b"\n") {
            let mut byte = [0];
            stdout.read_exact(&mut byte).unwrap();
            line.extend(byte);
        }
        Unread { process, stderr: reader, filled, command: pid(&String::from_utf8(line).unwrap()) }
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.process)
    }

    /// The exit code, and what it said once there was room.
    fn end(mut self) -> (Option<i32>, String) {
        let mut code = None;
        eventually("it ends", || {
            code = self.process.try_wait().unwrap();
            code.is_some()
        });
        let mut said = String::new();
        self.stderr.read_to_string(&mut said).unwrap();
        (code.unwrap().code(), said.split_off(self.filled))
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn a_broken_lock_stops_the_command_though_nobody_reads() {
    for flags in [&[][..], &["--json"]] {
        let store = Store::new();
        let held = Unread::start(&store, flags);
        let next = store.queue(&["x"], "x");
        assert_eq!(store.tenure(["break", "x", "--yes"]).code(), 0);
        next.expect_line("in");
        // The grace begins at the break: nothing of ours waits for the reader.
        eventually("the command is gone", || !lives(held.command));
        eventually("tenure is gone too", || !lives(held.pid()));
        drop(held);
        assert_eq!(next.end().code(), 0);
        store.assert_empty();
    }
}

#[test]
fn sigterm_ends_it_though_nobody_reads() {
    let store = Store::new();
    let held = Unread::start(&store, &[]);
    // Something to say comes first.
    assert_eq!(store.tenure(["ask", "x", "--reason", "please"]).code(), 0);
    eventually("it was asked", || !store.view("x")["holders"][0]["asked"].is_null());
    kill_process(held.pid(), Signal::TERM).unwrap();
    eventually("the command is gone", || !lives(held.command));
    assert_eq!(held.end().0, Some(128 + 15));
    store.assert_empty();
}

#[test]
fn an_ask_does_no_harm_though_nobody_reads() {
    let store = Store::new();
    // With a short grace it is given up late, and a machine may stand still between two renewals.
    let held = Unread::start(&store, &["--ttl", "5s", "--grace", "200ms"]);
    assert_eq!(store.tenure(["ask", "x", "--reason", "please"]).code(), 0);
    // Past its ttl, and past what the renewals until then had given it.
    let mut held_for = 0;
    while held_for < 11_000 {
        let view = store.view("x");
        let Some(ms) = view["holders"][0]["held_for_ms"].as_u64() else { panic!("{:?}", held.end()) };
        held_for = ms;
    }
    assert!(lives(held.command), "and the command runs");
    kill_process(held.pid(), Signal::TERM).unwrap();
    assert_eq!(held.end().0, Some(128 + 15));
}

/// What was said is written, in order, when the reader is only slow.
#[test]
fn a_slow_reader_loses_nothing() {
    let store = Store::new();
    let held = Unread::start(&store, &[]);
    assert_eq!(store.tenure(["ask", "x", "--reason", "first"]).code(), 0);
    let waiter = store.queue(&["x"], "x");
    let mut filled = vec![0; held.filled];
    (&held.stderr).read_exact(&mut filled).unwrap();
    let mut said = Vec::new();
    while !said.ends_with(b"\n") {
        let mut byte = [0];
        (&held.stderr).read_exact(&mut byte).unwrap();
        said.extend(byte);
    }
    assert!(String::from_utf8_lossy(&said).ends_with("asks us to let go: first\n"), "{said:?}");
    assert_eq!(store.tenure(["break", "x", "--yes"]).code(), 0);
    let mut rest = String::new();
    (&held.stderr).read_to_string(&mut rest).unwrap();
    assert!(rest.contains("the lock was lost") && rest.contains("stopping the command"), "{rest}");
    waiter.expect_line("in");
    assert_eq!(waiter.end().code(), 0);
    store.assert_empty();
}
