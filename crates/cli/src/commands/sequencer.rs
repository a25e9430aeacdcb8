//! `tenure sequencer show|verify|key`

use std::io::Read as _;
use std::time::Duration;

use clap::Subcommand;
use serde::Serialize;
use tenure::{ErrorKind, Keys, Sequencer, Standing, Wait};

use crate::duration;
use crate::failure::Failure;
use crate::guarded;
use crate::keys::KeysArgs;
use crate::print::{BAD, BOLD, DIM, GOOD, Printer, SequencerJson, WARNING, clean, mode, wall_ms};
use crate::store::{Source, StoreArgs};

/// Read and verify sequencers, and make keys to sign them
///
/// A sequencer is a hold as one word: which lock, kind, mode and token. `tenure run` gives it to its command as
/// TENURE_SEQUENCER, which hands it to whatever the lock protects, so that this can refuse a holder that comes too late.
#[derive(clap::Args, Debug)]
#[command(after_help = AFTER, arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Show(ShowArgs),
    Verify(VerifyArgs),
    Key(KeyArgs),
}

/// Print what is in a sequencer, without verifying it
#[derive(clap::Args, Debug)]
struct ShowArgs {
    /// The sequencer, or - for the first line of stdin [default: TENURE_SEQUENCER of the environment]
    sequencer: Option<String>,
}

/// Say whether a sequencer is good: signed with one of our keys, and still held
///
/// With keys its signature is verified, which needs nobody. If a store is named, by --store or the environment, or if there are no
/// keys, the store is asked whether the hold is still there; that takes no right to lock.
#[derive(clap::Args, Debug)]
#[command(after_help = VERIFY)]
struct VerifyArgs {
    /// The sequencer, or - for the first line of stdin [default: TENURE_SEQUENCER of the environment]
    sequencer: Option<String>,

    #[command(flatten)]
    keys: KeysArgs,

    /// Only verify the signature, also if a store is named
    #[arg(long)]
    offline: bool,
}

/// Print a fresh key to sign sequencers with, as a line for a file of keys
///
/// Whoever has it can sign as well as verify: give it to those who lock, to the resources that the locks protect, and to nobody
/// else. To change keys, add the new line below the old one everywhere, then move it to the top everywhere, then remove the old one.
#[derive(clap::Args, Debug)]
#[command(after_help = KEY)]
struct KeyArgs {
    /// What the key is called in sequencers: letters, digits, '.', '_' and '-' [default: the time in seconds]
    id: Option<String>,
}

const AFTER: &str = "\
Examples:
  tenure run x -- sh -c 'tenure sequencer show'    what the command was given
  tenure sequencer verify --keys keys.txt \"$HEADER\"
  (umask 077; tenure sequencer key > keys.txt)     a key of your own";

const VERIFY: &str = "\
Exit codes:
  0    it is good, as far as it was looked at
  1    superseded: somebody got the name after it, or its holder got it again
  2    released: the hold is over, and nobody is known to have followed
  3    unknown: the store has forgotten the name, or never gave this token
  4    bad: not a sequencer, not signed, not with one of our keys, or changed
  125  tenure itself failed (bad usage, no store): nothing is known

Examples:
  tenure sequencer verify --keys keys.txt --offline \"$HEADER\" || exit 1
  echo \"$HEADER\" | tenure sequencer verify --store redis://locks -";

const KEY: &str = "\
Examples:
  (umask 077; tenure sequencer key > keys.txt)
  tenure run --keys keys.txt x -- ./job";

impl Args {
    pub(crate) async fn run(&self, store: &StoreArgs, printer: &Printer) -> Result<u8, Failure> {
        match &self.what {
            What::Show(args) => args.run(printer),
            What::Verify(args) => args.run(store, printer).await,
            What::Key(args) => args.run(printer),
        }
    }
}

/// The sequencer's text, from wherever it comes.
fn text(given: Option<&str>) -> Result<String, Failure> {
    let nowhere = || {
        Failure::new("which sequencer?")
            .with_hint("Give it as an argument, or on stdin with -; inside `tenure run` it is in TENURE_SEQUENCER")
    };
    match given {
        Some("-") => {
            let mut text = String::new();
            std::io::stdin().take(MOST_READ).read_to_string(&mut text)?;
            Ok(text.lines().next().unwrap_or_default().trim().to_owned())
        }
        Some(text) => Ok(text.to_owned()),
        None => std::env::var("TENURE_SEQUENCER").ok().filter(|text| !text.is_empty()).ok_or_else(nowhere),
    }
}

/// More than any sequencer has.
const MOST_READ: u64 = 64 * 1024;

impl ShowArgs {
    fn run(&self, printer: &Printer) -> Result<u8, Failure> {
        let sequencer: Sequencer = text(self.sequencer.as_deref())?.parse()?;
        if printer.json {
            printer.object(&SequencerJson::from(&sequencer))?;
            return Ok(0);
        }
        let age = Duration::from_millis(wall_ms().saturating_sub(sequencer.issued_ms));
        let signed = match sequencer.signed_by() {
            Some(id) => format!("with the key {id}; not verified"),
            None => printer.paint(WARNING, "no: anybody can write this"),
        };
        for (label, value) in [
            ("name", printer.paint(BOLD, clean(sequencer.name.as_str()))),
            ("kind", sequencer.kind.to_string()),
            ("mode", mode(sequencer.mode)),
            ("token", sequencer.token.to_string()),
            ("issued", format!("{} ago, by the holder's clock", duration::show(age))),
            ("signed", signed),
        ] {
            printer.line(format!("{} {value}", printer.paint(DIM, format!("{label:<7}"))))?;
        }
        Ok(0)
    }
}

/// What was found.
enum Verdict {
    Good { standing: Option<Standing> },
    NotHeld(Standing),
    Bad(tenure::Error),
}

impl VerifyArgs {
    async fn run(&self, store: &StoreArgs, printer: &Printer) -> Result<u8, Failure> {
        let text = text(self.sequencer.as_deref())?;
        let keys = self.keys.read()?;
        let source = store.source()?;
        let asks = !self.offline && (keys.is_none() || !matches!(source, Source::Default));
        if !asks && keys.is_none() {
            return Err(Failure::new("--offline verifies the signature, and there are no keys")
                .with_hint("Name a file of keys with --keys or TENURE_KEYS_FILE"));
        }
        let (sequencer, verdict) = match parse(&text, keys.as_ref()) {
            (sequencer, Err(error)) => (sequencer, Verdict::Bad(error)),
            (sequencer, Ok(good)) => (sequencer, verdict_of(asks.then_some(store), &good, printer).await?),
        };
        print(&Found { sequencer, is_signed: keys.is_some(), verdict }, printer)
    }
}

/// Reads and verifies it. What could be read is shown also if it is not good.
fn parse(text: &str, keys: Option<&Keys>) -> (Option<Sequencer>, tenure::Result<Sequencer>) {
    match text.parse::<Sequencer>() {
        Err(error) => (None, Err(error)),
        Ok(sequencer) => {
            let verified = keys.map_or(Ok(()), |keys| sequencer.verify(keys));
            (Some(sequencer.clone()), verified.map(|()| sequencer))
        }
    }
}

async fn verdict_of(store: Option<&StoreArgs>, sequencer: &Sequencer, printer: &Printer) -> Result<Verdict, Failure> {
    let Some(store) = store else { return Ok(Verdict::Good { standing: None }) };
    let client = store.connect(Wait::Forever, printer).await?;
    let standing = client.check(sequencer).await;
    guarded::close(&client).await;
    Ok(match standing? {
        Standing::Current => Verdict::Good { standing: Some(Standing::Current) },
        other => Verdict::NotHeld(other),
    })
}

struct Found {
    sequencer: Option<Sequencer>,
    /// Whether its signature was looked at.
    is_signed: bool,
    verdict: Verdict,
}

/// Says what was found; gives the exit code.
fn print(found: &Found, printer: &Printer) -> Result<u8, Failure> {
    #[derive(Serialize)]
    struct Line {
        verdict: &'static str,
        says: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        superseded_by: Option<u64>,
        /// Whether the signature was verified.
        signature: bool,
        /// Whether the store was asked.
        store: bool,
        sequencer: Option<SequencerJson>,
    }
    let name = found.sequencer.as_ref().map_or(String::new(), |sequencer| clean(sequencer.name.as_str()).into_owned());
    let (code, word, style, says) = match &found.verdict {
        Verdict::Good { standing } => {
            let held = standing.map(|_| "it is held now");
            let signed = found.is_signed.then_some("its signature is good");
            let says: Vec<&str> = held.into_iter().chain(signed).collect();
            (0, "good", GOOD, format!("{name}: {}", says.join(", and ")))
        }
        Verdict::NotHeld(Standing::Superseded { by }) => {
            (1, "superseded", BAD, format!("{name}: it is over; the token {by} was given after it"))
        }
        Verdict::NotHeld(Standing::Released) => {
            (2, "released", BAD, format!("{name}: it is over; the store knows of nobody who followed"))
        }
        Verdict::NotHeld(_) => {
            let says = "the store has forgotten the name, or never gave this token";
            (3, "unknown", WARNING, format!("{name}: {says}"))
        }
        Verdict::Bad(error) => {
            let kind = if error.kind() == ErrorKind::BadSignature { "bad_signature" } else { "bad" };
            (4, kind, BAD, error.to_string())
        }
    };
    if printer.json {
        let superseded_by = match found.verdict {
            Verdict::NotHeld(Standing::Superseded { by }) => Some(by.get()),
            _ => None,
        };
        let store = matches!(found.verdict, Verdict::Good { standing: Some(_) } | Verdict::NotHeld(_));
        let sequencer = found.sequencer.as_ref().map(SequencerJson::from);
        printer.object(&Line { verdict: word, says, superseded_by, signature: found.is_signed, store, sequencer })?;
    } else {
        let word = word.replace('_', " ");
        printer.line(format!("{} {}", printer.paint(style, format!("{word}:")), clean(&says)))?;
    }
    Ok(code)
}

impl KeyArgs {
    fn run(&self, printer: &Printer) -> Result<u8, Failure> {
        #[derive(Serialize)]
        struct Line<'a> {
            id: &'a str,
            key: &'a str,
        }
        let id = self.id.clone().unwrap_or_else(|| format!("{}", wall_ms() / 1000));
        let keys = Keys::generate(&id)?;
        let line = keys.reveal();
        if printer.json {
            printer.object(&Line { id: &id, key: line.trim_end() })?;
        } else {
            printer.line(line.trim_end())?;
        }
        if printer.terminal {
            printer.note("keep it in a file that only its owner can read: (umask 077; tenure sequencer key > keys.txt)");
        }
        Ok(0)
    }
}
