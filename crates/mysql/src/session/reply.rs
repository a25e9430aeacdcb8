//! What a server answers to one text of statements: for each either no more than that it is done, or columns and rows, up to the
//! first error.

use std::io;
use std::sync::Arc;

use mysql_async::consts::{ColumnType, StatusFlags};
use mysql_async::{Column, Row, ServerError, Value};
use mysql_common::io::ParseBuf;
use mysql_common::row::new_row;

use super::packets::nonsense;
use crate::link::Rows;

/// An answer that is being read.
#[derive(Default)]
pub(super) struct Reply {
    /// The rows of each statement that had columns.
    pub(super) sets: Rows,
    /// What went wrong at last.
    pub(super) failure: Option<ServerError>,
    reading: Reading,
}

#[derive(Default)]
enum Reading {
    /// What comes of the next statement.
    #[default]
    Next,
    /// So many descriptions of columns, and the mark behind them. Nobody asks for their names.
    Columns(usize, Arc<[Column]>),
    Rows(Arc<[Column]>, Vec<Row>),
}

const OK: u8 = 0x00;
const FILE_WANTED: u8 = 0xfb;
const NULL: u8 = 0xfb;
const END: u8 = 0xfe;
const ERROR: u8 = 0xff;
/// An end is shorter than this; a row that begins alike is longer.
const LONGEST_END: usize = 9;

impl Reply {
    /// Takes the next packet. Whether it was the last.
    pub(super) fn take(&mut self, packet: &[u8]) -> io::Result<bool> {
        let first = *packet.first().ok_or_else(|| nonsense("nothing"))?;
        if first == ERROR {
            self.failure = Some(failure(packet)?);
            return Ok(true);
        }
        let is_end = first == END && packet.len() < LONGEST_END;
        match std::mem::take(&mut self.reading) {
            Reading::Next if first == OK => Ok(!more_follow(status_of_ok(packet)?)),
            Reading::Next if first == FILE_WANTED => Err(nonsense("it wants a file")),
            Reading::Next => {
                let many = ParseBuf(packet).checked_eat_lenenc_int().and_then(|many| u16::try_from(many).ok());
                let many = many.ok_or_else(|| nonsense("too many columns"))?;
                let columns = vec![Column::new(ColumnType::MYSQL_TYPE_VAR_STRING); usize::from(many)];
                self.reading = Reading::Columns(columns.len(), columns.into());
                Ok(false)
            }
            Reading::Columns(0, columns) if is_end => {
                self.reading = Reading::Rows(columns, Vec::new());
                Ok(false)
            }
            Reading::Columns(left, columns) => {
                let left = left.checked_sub(1).ok_or_else(|| nonsense("more columns than it said"))?;
                self.reading = Reading::Columns(left, columns);
                Ok(false)
            }
            Reading::Rows(_, rows) if is_end => {
                self.sets.push(rows);
                let [_, _, _, low, high] = *packet else { return Err(nonsense("an end of another size")) };
                Ok(!more_follow(u16::from_le_bytes([low, high])))
            }
            Reading::Rows(columns, mut rows) => {
                rows.push(row(packet, &columns)?);
                self.reading = Reading::Rows(columns, rows);
                Ok(false)
            }
        }
    }
}

fn more_follow(status: u16) -> bool {
    StatusFlags::from_bits_truncate(status).contains(StatusFlags::SERVER_MORE_RESULTS_EXISTS)
}

/// How many rows it changed and which number it drew come first.
fn status_of_ok(packet: &[u8]) -> io::Result<u16> {
    let mut rest = ParseBuf(&packet[1..]);
    let numbers = rest.checked_eat_lenenc_int().and_then(|_| rest.checked_eat_lenenc_int());
    numbers.and_then(|_| rest.checked_eat_u16_le()).ok_or_else(|| nonsense("half a confirmation"))
}

/// Its number, `#` and five characters of the standard's, and its words.
fn failure(packet: &[u8]) -> io::Result<ServerError> {
    let mut rest = ParseBuf(&packet[1..]);
    let code = rest.checked_eat_u16_le().ok_or_else(|| nonsense("half an error"))?;
    let (state, message) = match rest.0 {
        [b'#', rest @ ..] if rest.len() >= 5 => rest.split_at(5),
        message => (&b"HY000"[..], message), // to whoever has not logged in yet
    };
    let [state, message] = [state, message].map(|text| String::from_utf8_lossy(text).into_owned());
    Ok(ServerError { code, message, state })
}

/// What went wrong, if that is what a packet says.
pub(super) fn failure_in(packet: &[u8]) -> io::Result<Option<ServerError>> {
    if packet.first() == Some(&ERROR) { failure(packet).map(Some) } else { Ok(None) }
}

fn row(packet: &[u8], columns: &Arc<[Column]>) -> io::Result<Row> {
    let mut rest = ParseBuf(packet);
    let value = |_: &Column| {
        if rest.0.first() == Some(&NULL) {
            rest.skip(1);
            return Some(Value::NULL);
        }
        rest.checked_eat_lenenc_str().map(|text| Value::Bytes(text.to_vec()))
    };
    let values: Option<Vec<Value>> = columns.iter().map(value).collect();
    Ok(new_row(values.ok_or_else(|| nonsense("half a row"))?, Arc::clone(columns)))
}

#[cfg(test)]
mod tests;
