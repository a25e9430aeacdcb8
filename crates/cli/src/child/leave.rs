//! Ending this process so that the shell above understands why.

use std::os::unix::process::CommandExt;
use std::process::exit;

use super::{order::Outcome, shim};
use crate::print;

/// Exits with the command's code; after a Ctrl-C, as a program does that Ctrl-C ended.
///
/// While the command had the terminal, Ctrl-C reached it alone: not us, nor the script that called
/// us. Without more, `for f in *; do tenure run x -- work "$f"; done` could not be interrupted, as a
/// shell leaves the loop only if its job *died of* SIGINT. So in that one case our group gets the
/// signal late, and we die of it; `$?` is 130 either way. In all other cases it is the code.
///
/// No destructor runs, so release the lock first.
pub(crate) fn leave(outcome: Outcome) -> ! {
    print::flush(print::PATIENCE);
    if outcome.interrupted
        && let Ok(mut interrupt) = shim::interrupt_command()
    {
        // We catch SIGINT, and a handler cannot be uninstalled in safe code; `exec` does it.
        let _failed = interrupt.exec();
    }
    exit(outcome.code());
}
