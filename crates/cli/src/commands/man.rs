//! `tenure man [COMMAND]`

use clap::{Command, CommandFactory};
use clap_mangen::Man;

use crate::cli::Cli;
use crate::failure::Failure;
use crate::print::Printer;

/// Print the man page, with a page for every command
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  tenure man | man -l -\n  tenure man run > ~/.local/share/man/man1/tenure-run.1")]
pub(crate) struct Args {
    /// Only the page of this command
    command: Option<String>,
}

impl Args {
    pub(crate) fn run(&self, printer: &Printer) -> Result<u8, Failure> {
        let mut whole = Cli::command();
        whole.build();
        let mut pages = Vec::new();
        match &self.command {
            None => {
                render(&whole, &mut pages)?;
                for command in whole.get_subcommands().filter(|command| !command.is_hide_set()) {
                    render_all(command, &mut pages)?;
                }
            }
            Some(name) => {
                let command = whole.find_subcommand(name);
                let unknown = || Failure::new(format!("there is no command {name:?}")).with_hint("tenure --help lists them");
                render_all(command.ok_or_else(unknown)?, &mut pages)?;
            }
        }
        printer.raw(&pages)?;
        Ok(0)
    }
}

/// A command's page, and those of its own commands.
fn render_all(command: &Command, pages: &mut Vec<u8>) -> Result<(), Failure> {
    render(command, pages)?;
    command.get_subcommands().filter(|command| !command.is_hide_set()).try_for_each(|command| render_all(command, pages))
}

fn render(command: &Command, pages: &mut Vec<u8>) -> Result<(), Failure> {
    // Built, every command knows its whole name, `tenure-run`.
    let page = Man::new(command.clone()).source(concat!("tenure ", env!("CARGO_PKG_VERSION")));
    page.render_title(pages)?;
    page.render_name_section(pages)?;
    page.render_synopsis_section(pages)?;
    page.render_description_section(pages)?;
    page.render_options_section(pages)?;
    if command.has_subcommands() {
        page.render_subcommands_section(pages)?;
    }
    if let Some(text) = command.get_after_long_help().or(command.get_after_help()) {
        pages.extend(sections(&text.to_string()).as_bytes());
    }
    Ok(())
}

/// What stands below the options in `--help`: lines that are aligned by hand, under headings that end with a colon.
fn sections(text: &str) -> String {
    let mut roff = String::new();
    for (place, block) in text.split("\n\n").enumerate() {
        let (heading, lines) = match block.split_once('\n') {
            Some((first, rest)) if first.ends_with(':') => (first.trim_end_matches(':'), rest),
            _ => (if place == 0 { "NOTES" } else { "" }, block),
        };
        if !heading.is_empty() {
            roff.push_str(&format!(".SH \"{}\"\n", heading.to_uppercase()));
        }
        roff.push_str(".nf\n");
        for line in lines.lines() {
            // A leading dot would be a request; a plain hyphen may be set as another character, and copied wrongly.
            roff.push_str(&format!("\\&{}\n", line.replace('\\', "\\e").replace('-', "\\-")));
        }
        roff.push_str(".fi\n");
    }
    roff
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hand_made_lines_stay_as_they_are() {
        let roff = sections("See more.\n\nExamples:\n  a --b   c\\d\n  .e");
        assert_eq!(
            roff,
            ".SH \"NOTES\"\n.nf\n\\&See more.\n.fi\n.SH \"EXAMPLES\"\n.nf\n\\&  a \\-\\-b   c\\ed\n\\&  .e\n.fi\n"
        );
    }
}
