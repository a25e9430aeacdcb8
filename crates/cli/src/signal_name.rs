//! Signals as people write them: `USR1`, `SIGUSR1`, `usr1`, `10`.

use rustix::process::Signal;

/// Reads a signal.
pub(crate) fn parse(text: &str) -> Result<Signal, String> {
    if let Ok(number) = text.parse() {
        return Signal::from_named_raw(number).ok_or_else(|| format!("there is no signal {number} with a name"));
    }
    let name = text.to_ascii_uppercase();
    let name = name.strip_prefix("SIG").unwrap_or(&name);
    let found = NAMES.iter().find(|(known, _)| *known == name).map(|(_, signal)| *signal);
    found.ok_or_else(|| {
        let known: Vec<&str> = NAMES.iter().map(|(known, _)| *known).collect();
        format!("expected a signal's number or one of {}", known.join(", "))
    })
}

/// Those that a program can be sent with a purpose; the others have numbers.
const NAMES: &[(&str, Signal)] = &[
    ("TERM", Signal::TERM),
    ("INT", Signal::INT),
    ("HUP", Signal::HUP),
    ("QUIT", Signal::QUIT),
    ("USR1", Signal::USR1),
    ("USR2", Signal::USR2),
    ("ALRM", Signal::ALARM),
    ("WINCH", Signal::WINCH),
    ("CONT", Signal::CONT),
    ("KILL", Signal::KILL),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers() {
        for text in ["USR1", "usr1", "SIGUSR1", "sigusr1"] {
            assert_eq!(parse(text), Ok(Signal::USR1), "{text}");
        }
        assert_eq!(parse(&Signal::USR1.as_raw().to_string()), Ok(Signal::USR1));
        for text in ["", "SIG", "0", "-1", "99", "NOPE", "SIGSIGINT"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
