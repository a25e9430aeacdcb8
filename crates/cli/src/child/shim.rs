//! This same program, started again as a small helper.
//!
//! `tenure __child VERB …` is not for users. Each verb is one errand that must be run in a process
//! of its own; the module that needs it builds the command line through the functions here, so
//! that both ends of it stand on one page.

use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind, PipeWriter};
use std::os::unix::process::CommandExt;
use std::process::{Command, exit};

use rustix::process::{Pid, Signal, getpid, getppid, kill_current_process_group, kill_process};

use tenure::Instant;

use super::report::{self, Report};
use super::{order::Order, terminal, watchdog};

/// The hidden first argument that makes `tenure` a helper of itself.
pub(crate) const ENTRY: &str = "__child";

/// Runs a helper; `args` are those after [`ENTRY`]. Never returns.
///
/// `main` calls this before it parses arguments or starts a runtime or thread.
pub(crate) fn shim(args: impl IntoIterator<Item = OsString>) -> ! {
    let mut args = args.into_iter();
    let verb = args.next().unwrap_or_default();
    match verb.to_str() {
        Some(EXEC) => exec(args),
        Some(TERMINAL) => take_terminal(args),
        Some(WATCHDOG) => watchdog::watch(args),
        Some(INTERRUPT) => interrupt(),
        _ => misuse(),
    }
}

/// Has the keys themselves. A command that has them can sign a sequencer for any lock, so it is given only the one of its own hold.
const KEYS: &str = "TENURE_KEYS";

/// A command that becomes the one in `order`: it stops itself first, and goes on at SIGCONT.
pub(super) fn exec_command(order: &Order, report: &PipeWriter) -> io::Result<Command> {
    let mut command = helper(EXEC)?;
    command
        .arg(getpid().as_raw_nonzero().to_string())
        .arg(report::argument(report))
        .arg(&order.program)
        .args(&order.args)
        .env_remove(KEYS)
        .envs(order.env.iter().map(|(name, value)| (name, value)));
    Ok(command)
}

fn exec(mut args: impl Iterator<Item = OsString>) -> ! {
    let parent = parse_pid(args.next());
    let (Some(fd), Some(program)) = (args.next(), args.next()) else { misuse() };
    let mut report = Report::open(parent, &fd.to_string_lossy());
    // From here on, our supervisor cannot die without us. It is kept across `exec`.
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::set_parent_process_death_signal(Some(Signal::KILL)) {
        fail(report, &program, &error.into(), 126);
    }
    // It may have died just before that; then nobody holds the lock, and nothing must run.
    if getppid() != Some(parent) {
        exit(128 + Signal::KILL.as_raw());
    }
    // The supervisor puts everything in place while we stand still, and then continues us.
    let _ = kill_process(getpid(), Signal::STOP);
    report.about_to_start();
    // Besides replacing the program, std gives SIGPIPE, which its runtime ignores, its default back.
    // Handlers vanish by themselves, and no signal is blocked; see `signals::unblock`.
    let error = Command::new(&program).args(args).exec();
    fail(report, &program, &error, exec_code(&error));
}

/// A command that gives our terminal to `group`.
pub(super) fn terminal_command(group: Pid) -> io::Result<Command> {
    let mut command = helper(TERMINAL)?;
    command.arg(group.as_raw_nonzero().to_string());
    Ok(command)
}

fn take_terminal(mut args: impl Iterator<Item = OsString>) -> ! {
    let done = terminal::bring_to_front(parse_pid(args.next()));
    exit(i32::from(done.is_err()));
}

/// A command that watches over us; see [`watchdog`].
pub(super) fn watchdog_command(group: Option<Pid>, safe_until: Instant, strangers: &[Pid]) -> io::Result<Command> {
    let mut command = helper(WATCHDOG)?;
    command
        .arg(getpid().to_string())
        .arg(group.map_or(0, Pid::as_raw_pid).to_string())
        .arg(safe_until.as_nanos().to_string())
        .args(strangers.iter().map(Pid::to_string))
        // It must not keep a file system busy that the user wants to unmount.
        .current_dir("/");
    Ok(command)
}

/// A command that ends itself, and the process group it is in, by SIGINT.
pub(super) fn interrupt_command() -> io::Result<Command> {
    helper(INTERRUPT)
}

fn interrupt() -> ! {
    let _ = kill_current_process_group(Signal::INT);
    // Still here: somebody made us ignore it.
    exit(128 + Signal::INT.as_raw());
}

/// This very program, even if its file has been replaced or deleted since it was started.
fn helper(verb: &str) -> io::Result<Command> {
    #[cfg(target_os = "linux")]
    let program = "/proc/self/exe";
    #[cfg(not(target_os = "linux"))]
    let program = std::env::current_exe()?;
    let mut command = Command::new(program);
    command.arg0("tenure").arg(ENTRY).arg(verb);
    Ok(command)
}

/// Says why `program` does not run, in the words a shell uses, and exits.
fn fail(mut report: Report, program: &OsStr, error: &io::Error, code: i32) -> ! {
    if !report.failed(&plain(error), code) {
        eprintln!("tenure: {}: {}", program.display(), plain(error));
    }
    exit(code);
}

/// 127 if there is no such command, 126 if there is, but it cannot be run.
fn exec_code(error: &io::Error) -> i32 {
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory => 127,
        _ => 126,
    }
}

/// The system's words for an error, without the number std appends.
fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    match text.rfind(" (os error") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}

pub(super) fn parse_pid(arg: Option<OsString>) -> Pid {
    arg.and_then(|arg| arg.to_str()?.parse().ok())
        .filter(|raw: &i32| *raw > 0)
        .and_then(Pid::from_raw)
        .unwrap_or_else(|| misuse())
}

fn misuse() -> ! {
    eprintln!("tenure: {ENTRY} is how tenure calls itself; it is of no use to anybody else");
    exit(2);
}

const EXEC: &str = "exec";
const TERMINAL: &str = "terminal";
const WATCHDOG: &str = "watchdog";
const INTERRUPT: &str = "interrupt";

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

    #[test]
    fn errors_read_like_a_shell_s() {
        let missing = io::Error::from(Errno::NOENT);
        assert_eq!(plain(&missing), "No such file or directory");
        assert_eq!(exec_code(&missing), 127);
        let denied = io::Error::from(Errno::ACCESS);
        assert_eq!(plain(&denied), "Permission denied");
        assert_eq!(exec_code(&denied), 126);
        assert_eq!(plain(&io::Error::other("odd")), "odd");
    }

    #[test]
    fn the_command_line_keeps_the_arguments_apart() {
        let order = Order {
            program: "sh".into(),
            args: vec!["-c".into(), "--".into(), "".into()],
            env: vec![("A".into(), "b".into())],
            grace: std::time::Duration::ZERO,
            leftovers: crate::child::Leftovers::Wait,
        };
        let (_report, writer) = io::pipe().unwrap();
        let command = exec_command(&order, &writer).unwrap();
        let args: Vec<_> = command.get_args().collect();
        assert_eq!(args[..2], [ENTRY, EXEC]);
        assert_eq!(args[4..], ["sh", "-c", "--", ""]);
        let env: Vec<_> = command.get_envs().collect();
        assert_eq!(env, [("A".as_ref(), Some("b".as_ref())), (KEYS.as_ref(), None)]);
    }
}
