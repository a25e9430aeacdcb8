//! The signals of this process as one stream, for the whole life of the program.

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use rustix::process::{Signal, getpid, kill_process};
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

use super::terminal;

/// Everything that is said to this process by signal.
///
/// Make one at the start of the program and keep it: before there is a command,
/// [`quit`](Signals::quit) tells when the user gives up waiting; afterwards
/// [`Child::supervise`](super::Child::supervise) passes the signals on. A signal that arrives
/// between the two is kept and seen by the later one.
///
/// A signal that was *ignored* when we were started stays ignored, here and in the command: that is
/// what `nohup` and a script's `&` ask for.
#[derive(Debug)]
pub(crate) struct Signals {
    streams: Vec<(Signal, Stream)>,
}

impl Signals {
    /// Starts listening. Must be called inside a tokio runtime.
    pub(crate) fn new() -> io::Result<Self> {
        let ignored = ignored();
        let mut streams = Vec::with_capacity(HEARD.len());
        for &heard in HEARD {
            if ignored & bit(heard) == 0 || NEEDED.contains(&heard) {
                let stream = signal(SignalKind::from_raw(heard.as_raw()))?;
                streams.push((heard, stream));
            }
        }
        Ok(Self { streams })
    }

    /// The next signal, whichever it is. Equal ones in quick succession may arrive as one.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a signal is taken only by the call that returns it.
    pub(crate) async fn next(&mut self) -> Signal {
        poll_fn(|cx| {
            for (signal, stream) in &mut self.streams {
                if let Poll::Ready(Some(())) = stream.poll_recv(cx) {
                    return Poll::Ready(*signal);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Waits until somebody asks this process to end: INT, TERM, HUP or QUIT.
    ///
    /// For the time without a command. Ctrl-Z stops us as it stops any program, since catching the
    /// other signals must not take that away; the rest concerns only a command and is dropped.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a request to end is taken only by the call that returns it.
    pub(crate) async fn quit(&mut self) -> Signal {
        loop {
            match self.next().await {
                end @ (Signal::INT | Signal::TERM | Signal::HUP | Signal::QUIT) => return end,
                Signal::TSTP if !terminal::nobody_continues_us() => {
                    // Cannot fail: one may always signal oneself.
                    let _ = kill_process(getpid(), Signal::STOP);
                }
                _ => {}
            }
        }
    }
}

/// Unblocks every signal, for this thread and all that it starts. Call it first of all.
///
/// A program that blocks signals and then starts us has us inherit that. With SIGCHLD blocked we would
/// not hear that the command ended, and renew for ever; with SIGTERM, neither we nor the command could be ended.
pub(crate) fn unblock() {
    // Fails only for arguments that this call cannot have.
    let _ = nix::sys::signal::SigSet::empty().thread_set_mask();
}

/// The set of ignored signals as this process inherited it, one bit a signal.
fn ignored() -> u64 {
    // There is no safe call for it, but Linux writes it down. Elsewhere nothing counts as ignored.
    std::fs::read_to_string("/proc/self/status").ok().and_then(|status| parse_ignored(&status)).unwrap_or(0)
}

fn parse_ignored(status: &str) -> Option<u64> {
    let hex = status.lines().find_map(|l| l.strip_prefix("SigIgn:"))?;
    u64::from_str_radix(hex.trim(), 16).ok()
}

fn bit(signal: Signal) -> u64 {
    1 << (signal.as_raw() - 1)
}

/// What we listen to; those that end us come first, should several wait.
const HEARD: &[Signal] = &[
    Signal::TERM,
    Signal::INT,
    Signal::HUP,
    Signal::QUIT,
    Signal::USR1,
    Signal::USR2,
    Signal::WINCH,
    Signal::TSTP,
    Signal::CONT,
    Signal::CHILD,
];

/// What supervision cannot do without. An ignored CHLD would even make the kernel throw the
/// command's exit code away.
const NEEDED: &[Signal] = &[Signal::CHILD, Signal::CONT];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_nohup_left() {
        let status = "Name:\tx\nSigBlk:\t0000000000000002\nSigIgn:\t0000000000000001\n";
        assert_eq!(parse_ignored(status), Some(bit(Signal::HUP)));
        assert_eq!(parse_ignored("Name:\tx\n"), None);
    }

    #[test]
    fn a_bit_is_the_number_less_one() {
        assert_eq!(bit(Signal::HUP), 1);
        assert_eq!(bit(Signal::INT), 2);
        assert_eq!(bit(Signal::TERM), 1 << 14);
    }
}
