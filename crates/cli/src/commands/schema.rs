//! `tenure schema` and `tenure migrate`

use crate::failure::Failure;
use crate::print::Printer;
use crate::store::StoreArgs;

/// Print what a database needs for its locks, as SQL
///
/// Tables and functions, with a comment each: for a DBA to read, or to apply with psql or mariadb. Nothing is connected to;
/// of the URL only scheme, prefix and schema matter. It can be applied again and again.
///
///   tenure schema --store postgres://localhost/app | psql -1 app
#[derive(clap::Args, Debug)]
#[command(verbatim_doc_comment)]
pub(crate) struct SchemaArgs {}

/// Make in a database what its locks need
///
/// Applies what `tenure schema` prints, as the user in the URL, who must have the right to create tables and functions.
/// Whoever uses the locks afterwards needs no such right. It can be done again and again, also while locks are held.
#[derive(clap::Args, Debug)]
pub(crate) struct MigrateArgs {}

pub(crate) fn print(store: &StoreArgs, printer: &Printer) -> Result<u8, Failure> {
    let schema = tenure::schema(url(store, printer)?)?;
    schema.trim_end().lines().try_for_each(|line| printer.line(line))?;
    Ok(0)
}

pub(crate) async fn migrate(store: &StoreArgs, printer: &Printer) -> Result<u8, Failure> {
    let url = url(store, printer)?;
    tenure::migrate(&url).await?;
    if !printer.json {
        printer.line("The database has what locks need.")?;
    }
    Ok(0)
}

fn url(store: &StoreArgs, printer: &Printer) -> Result<String, Failure> {
    let no_url = || {
        Failure::new("the default store is a file, which makes by itself what it needs")
            .with_hint("Name a database: --store postgres://host/database or mysql://host/database")
    };
    store.named(printer)?.url().map(str::to_owned).ok_or_else(no_url)
}
