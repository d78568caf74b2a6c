//! What is said to etcd's JSON gateway, and what it says: bytes in base64, long numbers as texts, zeros left out.

use data_encoding::BASE64;
use serde::de::{Error, IgnoredAny};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

/// A key that must be as it was seen at `revision`; one that is not there has revision 0.
pub(super) fn unchanged(key: &str, revision: i64) -> Value {
    let revision = revision.to_string();
    json!({ "key": encode(key), "target": "MOD", "result": "EQUAL", "mod_revision": revision })
}

/// A key to be written.
pub(super) fn put(key: &str, value: &[u8], lease: Option<i64>) -> Value {
    let mut put = json!({ "key": encode(key), "value": BASE64.encode(value) });
    if let Some(lease) = lease {
        put["lease"] = lease.to_string().into();
    }
    json!({ "request_put": put })
}

/// One key to be read.
pub(super) fn one(key: &str) -> Value {
    json!({ "key": encode(key) })
}

/// All keys that begin so; the last byte must not be 255.
pub(super) fn beneath(prefix: &str) -> Value {
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    json!({ "key": encode(prefix), "range_end": BASE64.encode(&end) })
}

/// How many keys begin so, and the one of them that was written last.
pub(super) fn newest(prefix: &str) -> Value {
    let mut ask = beneath(prefix);
    ask["keys_only"] = true.into();
    ask["limit"] = "1".into();
    ask["sort_order"] = "DESCEND".into();
    ask["sort_target"] = "MOD".into();
    ask
}

fn encode(key: &str) -> String {
    BASE64.encode(key.as_bytes())
}

/// Keys that were read. Each answer of etcd has a header: an empty object is not one.
#[derive(Deserialize, Debug)]
pub(super) struct Range {
    #[serde(rename = "header")]
    _header: IgnoredAny,
    #[serde(default)]
    pub(super) kvs: Vec<Entry>,
    /// How many there are, also beyond a limit.
    #[serde(default, deserialize_with = "number")]
    pub(super) count: i64,
}

/// A key and its value.
#[derive(Deserialize, PartialEq, Debug)]
pub(super) struct Entry {
    #[serde(deserialize_with = "bytes")]
    pub(super) key: Vec<u8>,
    #[serde(default, deserialize_with = "bytes")]
    pub(super) value: Vec<u8>,
    #[serde(rename = "mod_revision", deserialize_with = "number")]
    pub(super) revision: i64,
    #[serde(default, deserialize_with = "number")]
    pub(super) lease: i64,
}

/// Whether a transaction's conditions were met.
#[derive(Deserialize, Debug)]
pub(super) struct Txn {
    #[serde(rename = "header")]
    _header: IgnoredAny,
    #[serde(default)]
    pub(super) succeeded: bool,
}

/// A new lease.
#[derive(Deserialize, Debug)]
pub(super) struct Granted {
    #[serde(rename = "ID", deserialize_with = "number")]
    pub(super) id: i64,
}

/// A lease that goes on; without time left there is none.
#[derive(Deserialize, Debug)]
pub(super) struct KeptAlive {
    #[serde(rename = "header")]
    _header: IgnoredAny,
    #[serde(rename = "TTL", default, deserialize_with = "number")]
    pub(super) ttl: i64,
}

/// The answer of what is a stream in gRPC.
#[derive(Deserialize, Debug)]
pub(super) struct Streamed<A> {
    pub(super) result: A,
}

/// Done; there is no more to know.
#[derive(Deserialize, Debug)]
pub(super) struct Ignored {
    #[serde(rename = "header")]
    _header: IgnoredAny,
}

/// What it says when it does not do something. Some versions name the text twice, streams put it a level deeper.
pub(super) fn refusal(answer: &[u8]) -> Option<(u32, String)> {
    let answer: Value = serde_json::from_slice(answer).ok()?;
    let told = answer.get("error").filter(|e| e.is_object()).unwrap_or(&answer);
    let code = told.get("code").or_else(|| told.get("grpc_code"))?.as_u64()?;
    let said = told.get("message").or_else(|| told.get("error"))?.as_str()?;
    Some((u32::try_from(code).ok()?, said.to_owned()))
}

fn bytes<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
    let text = String::deserialize(from)?;
    BASE64.decode(text.as_bytes()).map_err(|e| D::Error::custom(format_args!("no base64: {e}")))
}

fn number<'de, D: Deserializer<'de>>(from: D) -> Result<i64, D::Error> {
    let value = Value::deserialize(from)?;
    let number = value.as_i64().or_else(|| value.as_str()?.parse().ok());
    number.ok_or_else(|| D::Error::custom(format_args!("{value} is no number")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_and_writes_are_shaped_as_etcd_wants_them() {
        assert_eq!(
            unchanged("a", 0),
            json!({ "key": "YQ==", "target": "MOD", "result": "EQUAL", "mod_revision": "0" })
        );
        let with_lease = json!({ "request_put": { "key": "YQ==", "value": "/w==", "lease": "9007199254740993" } });
        assert_eq!(put("a", &[255], Some(9_007_199_254_740_993)), with_lease, "a long number is a text");
        assert_eq!(put("a", b"", None), json!({ "request_put": { "key": "YQ==", "value": "" } }));
        // "a/" up to "a0", the first that does not begin with "a/".
        assert_eq!(beneath("a/"), json!({ "key": "YS8=", "range_end": "YTA=" }));
    }

    #[test]
    fn answers_are_read_with_zeros_left_out() {
        let range = r#"{"header":{},"kvs":[{"key":"YQ==","mod_revision":"5","lease":77},{"key":"Yg==","value":"/w==","mod_revision":6}],"count":"2"}"#;
        let range: Range = serde_json::from_str(range).unwrap();
        let entry =
            |key: &[u8], value: &[u8], revision, lease| Entry { key: key.into(), value: value.into(), revision, lease };
        assert_eq!(range.kvs, [entry(b"a", b"", 5, 77), entry(b"b", &[255], 6, 0)]);
        assert_eq!(range.count, 2);
        assert!(serde_json::from_str::<Range>(r#"{"header":{}}"#).unwrap().kvs.is_empty());
        assert!(!serde_json::from_str::<Txn>(r#"{"header":{}}"#).unwrap().succeeded);
        let gone: Streamed<KeptAlive> = serde_json::from_str(r#"{"result":{"header":{},"ID":"7"}}"#).unwrap();
        assert_eq!(gone.result.ttl, 0);
    }

    #[test]
    fn odd_answers_are_not_taken_for_empty_ones() {
        for odd in ["", "{}", "[]", "null", r#"{"kvs":[]}"#, r#"{"header":{},"kvs":[{"key":"!","mod_revision":"1"}]}"#]
        {
            assert!(serde_json::from_str::<Range>(odd).is_err(), "{odd}");
        }
        for odd in [r#"{"ID":"x"}"#, r#"{"ID":1.5}"#, r#"{"ID":"99999999999999999999"}"#, "{}"] {
            assert!(serde_json::from_str::<Granted>(odd).is_err(), "{odd}");
        }
        assert!(serde_json::from_str::<Txn>("{}").is_err());
        assert!(serde_json::from_str::<Streamed<KeptAlive>>(r#"{"header":{}}"#).is_err());
    }

    #[test]
    fn refusals_are_understood_as_each_version_words_them() {
        let said = |text: &str| refusal(text.as_bytes());
        let gone = Some((5, "gone".to_owned()));
        assert_eq!(said(r#"{"error":"gone","message":"gone","code":5}"#), gone);
        assert_eq!(said(r#"{"code":5,"message":"gone","details":[]}"#), gone);
        assert_eq!(said(r#"{"error":"gone","code":5}"#), gone);
        assert_eq!(said(r#"{"error":{"grpc_code":5,"http_code":404,"message":"gone"}}"#), gone);
        assert_eq!(said("Not Found"), None);
        assert_eq!(said(r#"{"header":{},"succeeded":true}"#), None);
    }
}
