//! Queries: what they mean, how they print, and what is said of wrong ones.

use super::*;
use proptest::collection::vec;
use proptest::prelude::*;

/// Keys with their values; numbers for those that are.
struct Table(Vec<(&'static str, Value<'static>)>);

impl Fields for Table {
    fn any(&self, key: &str, test: &mut dyn FnMut(Value<'_>) -> bool) -> bool {
        self.0.iter().filter(|row| row.0 == key).any(|row| test(row.1))
    }
}

fn cache() -> Table {
    Table(vec![
        ("name", Value::Text("cache-users")),
        ("port", Value::Span(6379, 6379)),
        ("partition", Value::Span(3, 5)),
        ("partition", Value::Span(9, 9)),
        ("tag", Value::Text("hot")),
        ("tag", Value::Text("ssd")),
        ("load", Value::Text("0.25")),
        ("zone", Value::Text("a")),
        ("version", Value::Text("10")),
        ("my key", Value::Text("\\d \"x\"")),
        ("blob", Value::Opaque),
    ])
}

fn holds(query: &str) -> bool {
    Query::parse(query).unwrap_or_else(|e| panic!("{e}")).matches(&cache())
}

#[test]
fn tg_4_each_of_these_finds_the_service() {
    for query in [
        r#"name =~ "cache-.*" and partition in 3..5 and zone == "a" and load < 0.5"#,
        "zone == a",
        "name == 'cache-users'",
        "name != cache",
        "name < d",
        "not name =~ 'cache'",
        "name !~ 'cache'",
        "name =~ '(?i)CACHE-.*'",
        "partition == 4",
        "partition == 9",
        "partition > 8",
        "partition < 4",
        "partition in [1, 7..9]",
        "partition in 5..6",
        "partition not in 6..8",
        "partition not in (6, 7)",
        "port >= 6379 AND port <= 6379",
        "tag == ssd and tag == hot",
        "tag in [cold, hot]",
        "tag != cold",
        "load == 0.250",
        "load in 0..0.5",
        "version > 9",
        "version < '9'",
        "has blob and not has blub",
        "blob != x",
        "missing != x and missing !~ x and missing not in [x]",
        r#"`my key` == "\d \"x\"""#,
        "zone == b or zone == a and has port",
        "not (zone == b or port < 1000)",
    ] {
        assert!(holds(query), "{query}");
    }
}

#[test]
fn tg_4_none_of_these_does() {
    for query in [
        "name =~ 'cache'",
        "name =~ 'a|cache-users|b' and name == x",
        "partition == 3.5",
        "partition == 6",
        "partition in 6..8",
        "partition in 5.1..5.9",
        "partition > 9",
        "partition < 3",
        "tag == cold",
        "tag != hot",
        "tag not in [hot]",
        "name < 5",
        "name > 5",
        "load > '1'",
        "missing == x",
        "missing < 5",
        "missing =~ '.*'",
        "blob == x",
        "blob =~ '.*'",
        "(zone == b or zone == a) and has nothing",
        "not has port",
    ] {
        assert!(!holds(query), "{query}");
    }
}

/// Each error points at its place and says what is accepted there.
#[test]
fn errors_point_and_tell() {
    for (query, shown) in [
        (
            "",
            "\n^\nthe query ends here: expected a key (name, port, partition, tag, node, or any other), `has`, `not` or `(`",
        ),
        (
            "name = cache",
            "name = cache\n     ^\nexpected `==`, `!=`, `<`, `<=`, `>`, `>=`, `=~`, `!~`, `in` or `not in`, not `=`; equal is `==`",
        ),
        ("name ==", "name ==\n       ^\nthe query ends here: expected a text in quotes, a word or a number"),
        ("name == and", "name == and\n        ^\nexpected a text in quotes, a word or a number, not `and`"),
        (
            "zone == a && has port",
            "zone == a && has port\n          ^\nexpected `and`, `or` or the end, not `&&`; write `and`",
        ),
        ("(zone == a", "(zone == a\n          ^\nthe query ends here: expected `and`, `or` or `)`"),
        ("zone == \"a", "zone == \"a\n        ^\nwhat begins here has no end: expected another \""),
        (
            "größe == 1",
            "größe == 1\n  ^\nexpected `==`, `!=`, `<`, `<=`, `>`, `>=`, `=~`, `!~`, `in` or `not in`, not `ö`",
        ),
        (
            "port == http",
            "port == http\n        ^\n`port` is a number: expected a number, or `in` with numbers and ranges such as 3..5",
        ),
        (
            "partition =~ 3",
            "partition =~ 3\n          ^\n`partition` is a number: expected a number, or `in` with numbers and ranges such as 3..5",
        ),
        (
            "partition in [3, a]",
            "partition in [3, a]\n                 ^\n`partition` is a number: expected a number, or `in` with numbers and ranges such as 3..5",
        ),
        (
            "partition in 3",
            "partition in 3\n             ^\nexpected a range such as 3..5, or a list such as [\"a\", \"b\", 7..9], not `3`",
        ),
        (
            "partition in 5..3",
            "partition in 5..3\n                ^\nthe range ends before it begins: expected the lower number first",
        ),
        (
            "host == 10.0.0.1",
            "host == 10.0.0.1\n            ^\nexpected `and`, `or` or the end, not `.`; a text that begins with a digit needs quotes",
        ),
        ("tag in [a b]", "tag in [a b]\n          ^\nexpected `,` or `]`, not `b`"),
        ("load < 1234567890123456", "load < 1234567890123456\n       ^\na number has at most 15 digits"),
        ("has ``", "has ``\n    ^\na key has 1 to 128 bytes, not 0"),
    ] {
        let error = Query::parse(query).expect_err(query);
        assert_eq!(error.to_string(), shown, "{query}");
    }
    let error = Query::parse("name =~ \"a(b\"").expect_err("no regular expression");
    assert_eq!(error.at(), 8);
    assert!(
        matches!(error.why(), Wrong::Pattern(_)) && error.to_string().contains("not a regular expression"),
        "{error}"
    );
}

#[test]
fn a_place_far_inside_a_long_query_is_shown_with_what_is_around_it() {
    let query = format!("{} == ? {}", "k".repeat(100), "x".repeat(100));
    let error = Query::parse(&query).unwrap_err().to_string();
    let mut lines = error.lines();
    let (line, caret) = (lines.next().unwrap(), lines.next().unwrap());
    assert!(line.starts_with("…k") && line.ends_with("x…") && line.chars().count() == 122, "{line}");
    assert_eq!(line.chars().nth(caret.chars().count() - 1), Some('?'));
}

#[test]
fn what_is_too_much_is_refused() {
    let nested = |n: usize| format!("{}has a{}", "(".repeat(n), ")".repeat(n));
    assert!(Query::parse(&nested(DEPTH_MAX - 1)).is_ok());
    assert_eq!(Query::parse(&nested(DEPTH_MAX)).unwrap_err().why(), &Wrong::TooDeep);
    assert_eq!(Query::parse(&"not ".repeat(500)).unwrap_err().why(), &Wrong::TooDeep);
    assert_eq!(Query::parse(&"ä".repeat(LENGTH_MAX)).unwrap_err().why(), &Wrong::TooLong(2 * LENGTH_MAX));
    // It would be longer as it is printed.
    let terse = vec!["a==1"; LENGTH_MAX / 8].join("or ");
    assert!(terse.len() <= LENGTH_MAX && matches!(Query::parse(&terse).unwrap_err().why(), Wrong::TooLong(_)));
    for bomb in ["(a{1000}){1000}", "((a{99}){99}){99}", &"(".repeat(900)] {
        let query = format!("name =~ \"{bomb}\"");
        assert!(matches!(Query::parse(&query).unwrap_err().why(), Wrong::Pattern(_)), "{bomb}");
    }
}

#[test]
fn queries_print_as_they_are_usually_written() {
    for (query, printed) in [
        ("zone==a", "zone == \"a\""),
        ("(((a==1)and(b==2)))and c==3 OR d==4", "a == 1 and b == 2 and c == 3 or d == 4"),
        ("(a == 1 or b == 2) and not (has c and has d)", "(a == 1 or b == 2) and not (has c and has d)"),
        ("p in (3..5)", "p in 3..5"),
        ("p in (3)", "p in [3]"),
        ("p not in [ x,'y' , -1..2.50]", "p not in [\"x\", \"y\", -1..2.5]"),
        (r#"n =~ 'rack\d+"\\.'"#, r#"n =~ "rack\d+\"\.""#),
        (r#"n == 'a\\'"#, r#"n == "a\\""#),
        ("n =~ 042", "n =~ \"042\""),
        ("`and` == 1", "`and` == 1"),
        ("`a b` == 1", "`a b` == 1"),
    ] {
        assert_eq!(Query::parse(query).unwrap().to_string(), printed, "{query}");
    }
}

/// Bits of queries in any order: most make no sense, some do.
fn scraps() -> impl Strategy<Value = String> {
    let scrap = prop::sample::select(vec![
        "name",
        "port",
        "partition",
        "zone",
        "`a b`",
        "and",
        "or",
        "not",
        "in",
        "has",
        "(",
        ")",
        "[",
        "]",
        ",",
        "..",
        "==",
        "!=",
        "<",
        ">=",
        "=~",
        "!~",
        "3",
        "5",
        "-0.5",
        "\"a\\\\\"",
        "'x\\'y'",
        "\".*\"",
        "word",
        "ä",
        "\"",
        "`",
    ]);
    vec(scrap, 0..24).prop_map(|scraps| scraps.join(" "))
}

/// Queries that make sense.
fn sense() -> impl Strategy<Value = String> {
    let key = prop::sample::select(vec!["name", "zone", "`a b`", "x/y:z", "`or`", "NODE"]);
    let value = prop_oneof![
        r#"[a-z][a-z0-9-]{0,8}"#.prop_map(|w| format!("'{w}'")),
        "-?[0-9]{1,6}(\\.[0-9]{1,6})?",
        r#""[ -~]{0,12}x""#.prop_filter("quotes inside", |s| !s[1..s.len() - 1].contains(['"', '\\']))
    ];
    let choice = prop_oneof![value.clone(), (0u32..99, 0u32..99).prop_map(|(a, n)| format!("{a}..{}", a + n))];
    let leaf = prop_oneof![
        key.clone().prop_map(|k| format!("has {k}")),
        (key.clone(), prop::sample::select(vec!["==", "!=", "<", "<=", ">", ">="]), value.clone())
            .prop_map(|(k, sign, v)| format!("{k}{sign}{v}")),
        (key.clone(), prop::sample::select(vec!["=~", "!~"]), r#"'[a-z.*]{1,6}'"#).prop_map(|(k, sign, v)| format!(
            "{k} {sign} {}",
            v.replace('*', "+").replace("'+", "'a").replace("++", "+a")
        )),
        (key, prop::sample::select(vec!["in", "not in"]), vec(choice, 1..4))
            .prop_map(|(k, sign, choices)| format!("{k} {sign} [{}]", choices.join(","))),
    ];
    leaf.prop_recursive(5, 24, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 2..4).prop_map(|all| format!("({})", all.join(" and "))),
            vec(inner.clone(), 2..4).prop_map(|any| format!("({})", any.join(" or "))),
            inner.prop_map(|e| format!("not {e}")),
        ]
    })
}

fn prints_the_same(text: &str) -> Result<bool, TestCaseError> {
    let Ok(query) = Query::parse(text) else { return Ok(false) };
    let printed = query.to_string();
    let again = Query::parse(&printed).map_err(|e| TestCaseError::fail(format!("{text}\n{e}")))?;
    prop_assert_eq!(&again, &query);
    prop_assert_eq!(again.to_string(), printed);
    prop_assert_eq!(again.matches(&cache()), query.matches(&cache()));
    Ok(true)
}

proptest! {
    #[test]
    fn no_text_panics(text in "\\PC{0,80}") {
        if let Err(error) = Query::parse(&text) {
            prop_assert!(error.at() <= text.len() && error.to_string().lines().count() >= 3);
        }
    }

    #[test]
    fn no_scraps_panic_and_what_parses_prints_the_same(text in scraps()) {
        prints_the_same(&text)?;
    }

    #[test]
    fn print_and_parse_are_stable(text in sense()) {
        prop_assert!(prints_the_same(&text)?, "{}", Query::parse(&text).unwrap_err());
    }

    #[test]
    fn negations_are_what_the_others_are_not(n in 0u32..12, first in 0u32..12, more in 0u32..4) {
        let service = Table(vec![("p", Value::Span(first, first + more))]);
        let ask = |q: String| Query::parse(&q).unwrap().matches(&service);
        prop_assert_eq!(ask(format!("p == {n}")), (first..=first + more).contains(&n));
        prop_assert_eq!(ask(format!("p < {n}")), (first..=first + more).any(|p| p < n));
        prop_assert_eq!(ask(format!("p >= {n}")), (first..=first + more).any(|p| p >= n));
        prop_assert_eq!(ask(format!("p != {n}")), !ask(format!("p == {n}")));
        prop_assert_eq!(ask(format!("p not in {n}..{}", n + 2)), !ask(format!("p in {n}..{}", n + 2)));
        prop_assert_eq!(ask(format!("p in {n}..{}", n + 2)), (first..=first + more).any(|p| (n..=n + 2).contains(&p)));
    }
}
