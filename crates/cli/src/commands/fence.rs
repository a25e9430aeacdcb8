//! `tenure fence advance|check NAME [TOKEN]`

use std::sync::Arc;
use std::time::Duration;

use clap::Subcommand;
use serde::Serialize;
use tenure::fence::{Fence, Gate, Rule, Verdict};
use tenure::{Keys, LockName, Sequencer, Token};

use crate::duration;
use crate::failure::{Failure, LOST, NO};
use crate::fence::FenceArgs;
use crate::keys::KeysArgs;
use crate::print::{BAD, GOOD, Printer, clean};
use crate::store::set;

/// Refuse a holder that comes too late, at what the lock protects
///
/// A lock can be lost while its holder stands still; when it wakes up, it writes after somebody else has. A fence remembers
/// the highest token that was shown for a name, and refuses every lower one, however late. It is kept beside what is
/// protected, and needs no lock store: a file, or a database or Redis that is there anyway.
#[derive(clap::Args, Debug)]
#[command(after_help = AFTER, arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Show a token: accepted if nobody has shown a higher one, and then every lower one is refused
    ///
    /// Do it right before the write, on the host that does it; again before every further write. An equal token is accepted: a
    /// holder writes many times.
    #[command(after_help = CODES)]
    Advance(Shown),

    /// Say whether a token would be accepted now, and change nothing
    #[command(after_help = CODES)]
    Check(Shown),
}

#[derive(clap::Args, Debug)]
struct Shown {
    /// What is protected: the lock's name, or with a plain token any other
    name: String,

    /// A token, or a whole sequencer, whose lock must be NAME [env: TENURE_SEQUENCER, TENURE_TOKEN, as `tenure run` sets them]
    #[arg(value_name = "TOKEN|SEQUENCER")]
    token: Option<String>,

    #[command(flatten)]
    fence: FenceArgs,

    #[command(flatten)]
    keys: KeysArgs,

    /// Refuse a token that is further ahead of this host's clock: for the tokens of SQLite, Redis and databases, which follow it
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, conflicts_with = "max_step")]
    max_ahead: Option<Duration>,

    /// Refuse a token that is more than N above the highest so far (or above 0): for tokens that count one by one
    #[arg(long, value_name = "N")]
    max_step: Option<u64>,

    /// Say nothing; the exit code is enough
    #[arg(short, long)]
    quiet: bool,
}

/// What was given to be shown.
enum Given {
    Token(Token),
    Sequencer(Sequencer),
}

impl Args {
    pub(crate) async fn run(&self, printer: &Printer) -> Result<u8, Failure> {
        let (shown, changes) = match &self.verb {
            Verb::Advance(shown) => (shown, true),
            Verb::Check(shown) => (shown, false),
        };
        let name = LockName::new(&shown.name)?;
        let given = shown.given()?;
        let keys = shown.keys.read()?;
        let fence = shown.fence.open(printer).await?;
        // Read before the verdict: it is never higher than what that was about.
        let highest = if changes || !printer.json { None } else { fence.highest(&name).await? };
        let verdict = shown.judge(&fence, keys, &name, &given, changes).await?;
        shown.report(printer, &*fence, &name, given.token(), verdict, highest)
    }
}

impl Shown {
    fn rule(&self) -> Rule {
        match (self.max_ahead, self.max_step) {
            (Some(ahead), _) => Rule::max_ahead(ahead),
            (None, Some(step)) => Rule::max_step(step),
            (None, None) => Rule::ANY,
        }
    }

    fn given(&self) -> Result<Given, Failure> {
        if let Some(text) = &self.token {
            return parse(text);
        }
        let from_environment = ["TENURE_SEQUENCER", "TENURE_TOKEN"].into_iter().find_map(set);
        match from_environment.map(|text| text.into_string()) {
            Some(Ok(text)) => parse(&text),
            Some(Err(_)) => Err(Failure::new("TENURE_SEQUENCER or TENURE_TOKEN is not UTF-8 text")),
            None => Err(Failure::new("which token? There is neither an argument nor TENURE_TOKEN in the environment")
                .with_hint("Use it inside `tenure run`, which sets both variables, or give the token after NAME")),
        }
    }

    async fn judge(
        &self,
        fence: &Arc<dyn Fence>,
        keys: Option<Keys>,
        name: &LockName,
        given: &Given,
        changes: bool,
    ) -> Result<Verdict, Failure> {
        let rule = self.rule();
        Ok(match given {
            Given::Token(_) if keys.is_some() => {
                return Err(Failure::new("there are keys, so this fence takes signed sequencers, and that is a bare token").with_hint(
                    "Leave it out, and TENURE_SEQUENCER is shown, which `tenure run --keys` has signed; or call it without keys",
                ));
            }
            Given::Token(token) if changes => fence.advance(name, *token, rule).await?,
            Given::Token(token) => Verdict::of(fence.highest(name).await?, *token, rule),
            Given::Sequencer(sequencer) => {
                let gate = Gate::new(Arc::clone(fence)).rule(rule);
                let gate = match keys {
                    Some(keys) => gate.keys(keys),
                    None => gate,
                };
                let judged = match changes {
                    true => gate.judge(name, sequencer).await,
                    false => gate.foresee(name, sequencer).await,
                };
                judged.map_err(|error| match error.kind() {
                    tenure::ErrorKind::Mismatch => Failure::from(error).with_hint(
                        "NAME is the lock's name; for something else it protects, give its token: \"$TENURE_TOKEN\"",
                    ),
                    _ => error.into(),
                })?
            }
        })
    }

    fn report(
        &self,
        printer: &Printer,
        fence: &dyn Fence,
        name: &LockName,
        token: Token,
        verdict: Verdict,
        found: Option<Token>,
    ) -> Result<u8, Failure> {
        #[derive(Serialize)]
        struct Line<'a> {
            name: &'a str,
            token: u64,
            verdict: &'static str,
            /// What was in the way; with `check`, the highest so far also of a token that would be accepted.
            highest: Option<u64>,
            fence: String,
        }
        let (word, highest, code) = match verdict {
            Verdict::Accepted => ("accepted", None, 0),
            Verdict::Stale { highest } => ("stale", Some(highest), LOST),
            Verdict::Implausible { highest } => ("implausible", highest, NO),
        };
        if printer.json {
            let highest = highest.or(found).map(Token::get);
            printer.object(&Line {
                name: name.as_str(),
                token: token.get(),
                verdict: word,
                highest,
                fence: fence.describe(),
            })?;
        } else if !self.quiet {
            let shown = clean(name.as_str());
            let word = printer.paint(if code == 0 { GOOD } else { BAD }, word);
            printer.line(match (verdict, highest) {
                (Verdict::Accepted, _) => format!("{word}: {token} for {shown}"),
                (Verdict::Stale { highest }, _) => {
                    format!("{word}: {token} for {shown} comes too late, {highest} was shown before: do not write")
                }
                (_, Some(highest)) => {
                    format!(
                        "{word}: {token} for {shown} is too far above {highest}, the highest so far; nothing was changed"
                    )
                }
                (_, None) => format!("{word}: {token} is too high to be the first for {shown}; nothing was changed"),
            })?;
        }
        Ok(code)
    }
}

impl Given {
    fn token(&self) -> Token {
        match self {
            Given::Token(token) => *token,
            Given::Sequencer(sequencer) => sequencer.token,
        }
    }
}

fn parse(text: &str) -> Result<Given, Failure> {
    let text = text.trim();
    match text.parse::<u64>() {
        Ok(number) => Ok(Given::Token(Token::new(number))),
        Err(_) if text.contains(':') => Ok(Given::Sequencer(text.parse::<Sequencer>()?)),
        Err(_) => Err(Failure::new(format!("{text:?} is neither a token nor a sequencer"))
            .with_hint("A token is a number, TENURE_TOKEN; a sequencer is a text like tenure1:mutex:exclusive:17:0:NAME")),
    }
}

const CODES: &str = "\
Exit codes:
  0    accepted
  124  stale: somebody with a higher token has been here; do not write
  1    implausible, by --max-ahead or --max-step; nothing was changed
  125  tenure itself failed (bad usage, no fence), or with keys: it is not
       signed with one of them; do not write either";

const AFTER: &str = "\
Examples:
  export TENURE_FENCE=sqlite:///var/lib/backup/fence.db
  tenure run backup -- sh -c '
      ./dump > new.sql
      tenure fence advance backup && mv new.sql latest.sql'

  tenure fence advance accounts 1731664000000001 --fence sqlite:data.db
  tenure fence check accounts \"$TENURE_TOKEN\" --fence postgres://db/app
  tenure fence advance --max-ahead 10m backup   a mistaken or forged token
                                                locks nobody out for longer
  tenure fence advance --keys keys.txt backup   only what was signed, as by
                                                `tenure run --keys keys.txt`

What is done after it can be overtaken:
  Between the check and the write there should be nothing that can stand still
  for long. A database can do both in one transaction, with no gap at all:
  see check_fence in what `tenure schema` prints.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_or_a_sequencer() {
        assert!(matches!(parse("17"), Ok(Given::Token(token)) if token.get() == 17));
        assert!(matches!(parse(" 17\n"), Ok(Given::Token(_))));
        let text = "tenure1:mutex:exclusive:17:0:a";
        assert!(matches!(parse(text), Ok(Given::Sequencer(sequencer)) if sequencer.token.get() == 17));
        for bad in ["", "-1", "17.5", "abc", "tenure1:mutex:exclusive:17:0", "99999999999999999999999"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
