//! SASL DIGEST-MD5, the way ZooKeeper's servers log clients in with names and passwords of a JAAS file.
//!
//! Old, and better than a password in the clear: the password itself is never sent, and the server proves that it knows it too.
//! Pure; the dialogue is in `dial`.

use std::collections::HashMap;

use md5::{Digest, Md5};

/// What to send, and what the server must say to it.
pub(crate) struct Answer {
    pub(crate) response: String,
    proof: String,
}

impl Answer {
    /// Whether the server has proved that it knows the password.
    pub(crate) fn is_proved_by(&self, said: &[u8]) -> bool {
        std::str::from_utf8(said).is_ok_and(|said| fields(said).get("rspauth") == Some(&self.proof))
    }
}

/// The answer to a challenge; `None` if it is none.
pub(crate) fn answer(challenge: &[u8], user: &str, password: &str) -> Option<Answer> {
    answer_with(challenge, user, password, &hex(&tenure_core::random::<16>()))
}

fn answer_with(challenge: &[u8], user: &str, password: &str, cnonce: &str) -> Option<Answer> {
    let challenge = fields(std::str::from_utf8(challenge).ok()?);
    let nonce = challenge.get("nonce")?;
    let realm = challenge.get("realm").map_or("", String::as_str);
    let uri = format!("zookeeper/{realm}");
    let secret = md5(format!("{user}:{realm}:{password}").as_bytes());
    let a1 = hex(&md5(&[&secret[..], format!(":{nonce}:{cnonce}").as_bytes()].concat()));
    let proof = |a2: String| {
        let a2 = hex(&md5(a2.as_bytes()));
        hex(&md5(format!("{a1}:{nonce}:00000001:{cnonce}:auth:{a2}").as_bytes()))
    };
    let response = format!(
        "charset=utf-8,username=\"{}\",realm=\"{}\",nonce=\"{nonce}\",nc=00000001,cnonce=\"{cnonce}\",digest-uri=\"{uri}\",\
         maxbuf=65536,response={},qop=auth",
        quoted(user),
        quoted(realm),
        proof(format!("AUTHENTICATE:{uri}")),
    );
    Some(Answer { response, proof: proof(format!(":{uri}")) })
}

fn quoted(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"")
}

/// `a=b,c="d, e"` as a map.
fn fields(text: &str) -> HashMap<String, String> {
    let mut fields = HashMap::new();
    let mut rest = text;
    while let Some((name, tail)) = rest.split_once('=') {
        let (value, tail) = match tail.strip_prefix('"') {
            Some(tail) => {
                let (mut value, mut end, mut escaped) = (String::new(), tail.len(), false);
                for (at, c) in tail.char_indices() {
                    match c {
                        '\\' if !escaped => escaped = true,
                        '"' if !escaped => {
                            end = at + 1;
                            break;
                        }
                        c => {
                            value.push(c);
                            escaped = false;
                        }
                    }
                }
                (value, &tail[end..])
            }
            None => {
                let (value, tail) = tail.split_at(tail.find(',').unwrap_or(tail.len()));
                (value.to_owned(), tail)
            }
        };
        fields.insert(name.trim_matches([',', ' ']).to_owned(), value);
        rest = tail;
    }
    fields
}

fn md5(bytes: &[u8]) -> [u8; 16] {
    Md5::digest(bytes).into()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_with_and_without_quotes() {
        let fields = fields(r#"realm="zk-sasl-md5",nonce="a\"b,c",charset=utf-8,algorithm=md5-sess,qop="auth""#);
        assert_eq!((fields["realm"].as_str(), fields["nonce"].as_str()), ("zk-sasl-md5", "a\"b,c"));
        assert_eq!((fields["charset"].as_str(), fields["qop"].as_str()), ("utf-8", "auth"));
    }

    #[test]
    fn the_password_is_not_in_the_answer() {
        let answer = answer(br#"realm="r",nonce="n",algorithm=md5-sess"#, "app", "hunter2").unwrap();
        assert!(!answer.response.contains("hunter2") && answer.response.contains("username=\"app\""));
        assert!(!answer.is_proved_by(b"rspauth=0000") && !answer.is_proved_by(&[0xff]));
        assert!(super::answer(b"rubbish", "a", "b").is_none());
    }
}
