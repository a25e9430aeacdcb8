//! Where one message of Redis' protocol ends and the next begins: all that a fault needs to hit whole requests.

/// What a buffer begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Head {
    /// A whole message of so many bytes.
    Whole(usize),
    /// Not yet a whole message.
    Part,
    /// Something else than this protocol: TLS, replication, another server.
    Foreign,
}

/// Looks at the beginning of a buffer. Requests are arrays of strings, and so pass for replies.
pub(super) fn head(bytes: &[u8]) -> Head {
    let (mut at, mut missing) = (0, 1);
    while missing > 0 {
        let Some(kind) = bytes.get(at) else { return Head::Part };
        if !b"+-:_#,($!=*~>%|".contains(kind) {
            return Head::Foreign;
        }
        let Some(line) = line(&bytes[at + 1..]) else { return Head::Part };
        at += 1 + line.len() + 2;
        missing -= 1;
        if b"+-:_#,(".contains(kind) {
            continue;
        }
        let Some(size) = std::str::from_utf8(line).ok().and_then(|size| size.parse::<i64>().ok()) else {
            return Head::Foreign;
        };
        // A size of -1 is how the older protocol says "nothing".
        let size = size.max(-1);
        match kind {
            _ if size < 0 => {}
            b'$' | b'!' | b'=' => at += size as usize + 2,
            b'%' => missing += 2 * size,
            b'|' => missing += 2 * size + 1, // about the message that follows
            _ => missing += size,
        }
    }
    if at <= bytes.len() { Head::Whole(at) } else { Head::Part }
}

/// What a client asks for, as far as the order of answers depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// Has one answer.
    Plain,
    /// Is confirmed by messages like those that are published.
    Subscription,
    /// Turns the connection into something else.
    Takeover,
}

/// What kind of request a whole message is.
pub(super) fn request(message: &[u8]) -> Request {
    match first_word(message).unwrap_or_default().to_ascii_uppercase().as_slice() {
        b"PSYNC" | b"SYNC" | b"MONITOR" => Request::Takeover,
        word if word.ends_with(b"SUBSCRIBE") => Request::Subscription,
        _ => Request::Plain,
    }
}

/// Whether a whole message answers nobody: a push of RESP3, or what was published to a subscriber that speaks RESP2. (An
/// answer that is a list beginning with the word `message` is mistaken for one.)
pub(super) fn is_push(message: &[u8]) -> bool {
    const KINDS: [&[u8]; 3] = [b"message", b"pmessage", b"smessage"];
    let in_older_protocol = |word: &[u8]| KINDS.contains(&word) || word.ends_with(b"subscribe");
    match message.first() {
        Some(b'>') => true,
        Some(b'*') => first_word(message).is_some_and(in_older_protocol),
        _ => false,
    }
}

/// Whether it is a push that carries what somebody published.
pub(super) fn is_published(message: &[u8]) -> bool {
    is_push(message) && first_word(message).is_some_and(|word| word.ends_with(b"message"))
}

/// The first string of a list.
fn first_word(message: &[u8]) -> Option<&[u8]> {
    let after_count = &message[line(message)?.len() + 2..];
    let size = line(after_count.strip_prefix(b"$")?)?;
    let begin = 1 + size.len() + 2;
    after_count.get(begin..begin + std::str::from_utf8(size).ok()?.parse::<usize>().ok()?)
}

fn line(bytes: &[u8]) -> Option<&[u8]> {
    Some(&bytes[..bytes.windows(2).position(|two| two == b"\r\n")?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_prefix_is_a_part_and_the_whole_is_whole() {
        for message in [
            "+OK\r\n",
            ":-7\r\n",
            "_\r\n",
            "$-1\r\n",
            "*-1\r\n",
            "*0\r\n",
            "$0\r\n\r\n",
            "$5\r\na\r\nbc\r\n",
            "*2\r\n$4\r\nECHO\r\n$2\r\nhi\r\n",
            "*2\r\n*1\r\n:1\r\n#t\r\n",
            "%1\r\n+a\r\n*2\r\n:1\r\n:2\r\n",
            "|1\r\n+ttl\r\n:1\r\n$1\r\nx\r\n",
            ">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n",
        ] {
            let bytes = message.as_bytes();
            for end in 0..bytes.len() {
                assert_eq!(head(&bytes[..end]), Head::Part, "{message:?} up to {end}");
            }
            assert_eq!(head(bytes), Head::Whole(bytes.len()), "{message:?}");
            assert_eq!(head(&[bytes, b"+more"].concat()), Head::Whole(bytes.len()), "{message:?}");
        }
        for foreign in ["\x16\x03\x01", "GET / HTTP/1.1\r\n", "*many\r\n", "\0\0\0\x08"] {
            assert_eq!(head(foreign.as_bytes()), Head::Foreign, "{foreign:?}");
        }
    }

    #[test]
    fn requests_and_pushes_are_told_apart() {
        assert_eq!(request(b"*2\r\n$10\r\nssubscribe\r\n$1\r\nc\r\n"), Request::Subscription);
        assert_eq!(request(b"*1\r\n$4\r\nPING\r\n"), Request::Plain);
        assert_eq!(request(b"*3\r\n$5\r\nPSYNC\r\n$1\r\n?\r\n$2\r\n-1\r\n"), Request::Takeover);
        assert!(is_push(b"*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n"));
        assert!(!is_published(b"*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n"));
        assert!(is_published(b">3\r\n$8\r\nsmessage\r\n$1\r\nc\r\n$1\r\nm\r\n"));
        assert!(!is_push(b"*2\r\n$1\r\na\r\n$1\r\nb\r\n") && !is_push(b"+OK\r\n") && !is_push(b"*0\r\n"));
    }
}
