//! Which names anything that fits a query must have. Most queries name a service, and who keeps services in the order of
//! their names looks at a few of a thousand.
//!
//! A bound, never a verdict: whatever has such a name is still asked the whole query. What cannot be told at once is
//! [`Names::Any`].

use super::{Choice, Compare, Expr, Literal, Pattern};

/// Names that services must have.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Names {
    /// Nothing is known.
    Any,
    /// They begin with this.
    Prefix(Box<str>),
    /// They are among these, ascending; nothing fits when there are none.
    Only(Box<[Box<str>]>),
}

/// The key that services are kept by.
const KEY: &str = "name";

impl Names {
    pub(super) fn of(expr: &Expr) -> Self {
        match expr {
            Expr::Compare(key, Compare::Equal, Literal::Text(text)) if **key == *KEY => {
                Self::Only([text.clone()].into())
            }
            Expr::In(key, false, choices) if **key == *KEY => {
                let text = |choice: &Choice| match choice {
                    Choice::One(Literal::Text(text)) => Some(text.clone()),
                    // Names that read as this number: more than one.
                    Choice::One(Literal::Number(_)) | Choice::Range(..) => None,
                };
                choices.iter().map(text).collect::<Option<Vec<_>>>().map_or(Self::Any, Self::only)
            }
            Expr::Like(key, false, pattern) if **key == *KEY => match pattern.prefix() {
                "" => Self::Any,
                prefix => Self::Prefix(prefix.into()),
            },
            Expr::And(all) => all.iter().map(Self::of).fold(Self::Any, Self::both),
            Expr::Or(any) => {
                let only = |e| if let Self::Only(names) = Self::of(e) { Some(names) } else { None };
                let each: Option<Vec<_>> = any.iter().map(only).collect();
                each.map_or(Self::Any, |each| Self::only(each.into_iter().flatten().collect()))
            }
            Expr::Compare(..) | Expr::In(..) | Expr::Like(..) | Expr::Not(_) | Expr::Has(_) => Self::Any,
        }
    }

    fn only(mut names: Vec<Box<str>>) -> Self {
        names.sort_unstable();
        names.dedup();
        Self::Only(names.into())
    }

    /// A service has one name: it must satisfy both.
    fn both(self, other: Self) -> Self {
        match (self, other) {
            (Self::Any, names) | (names, Self::Any) => names,
            (Self::Only(a), Self::Only(b)) => Self::Only(a.into_iter().filter(|name| b.contains(name)).collect()),
            (Self::Only(a), Self::Prefix(p)) | (Self::Prefix(p), Self::Only(a)) => {
                Self::Only(a.into_iter().filter(|name| name.starts_with(&*p)).collect())
            }
            (Self::Prefix(a), Self::Prefix(b)) => Self::Prefix(if a.len() < b.len() { b } else { a }),
        }
    }
}

impl Pattern {
    /// What each text that fits begins with: the plain characters before the first that means something. None at all
    /// where there are alternatives, which may begin anyhow.
    fn prefix(&self) -> &str {
        if self.source.contains('|') {
            return "";
        }
        let plain = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '/' | ':' | ' ' | ',' | '@');
        let end = self.source.find(|c| !plain(c)).unwrap_or(self.source.len());
        let prefix = &self.source[..end];
        // What may be missing is not there for sure.
        let optional = self.source[end..].starts_with(['*', '?', '{']);
        prefix.char_indices().next_back().map_or("", |(last, _)| if optional { &prefix[..last] } else { prefix })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Fields, Query, Value};
    use proptest::prelude::*;

    fn names(query: &str) -> Names {
        Query::parse(query).unwrap_or_else(|e| panic!("{e}")).names().clone()
    }

    fn only(names: &[&str]) -> Names {
        Names::Only(names.iter().map(|&n| n.into()).collect())
    }

    #[test]
    fn a_query_says_which_names_it_can_find() {
        for (query, wanted) in [
            ("name == cache", only(&["cache"])),
            ("name == cache and load < 0.5 and partition == 3", only(&["cache"])),
            ("zone == a and (name == b or name in [c, a, b])", only(&["a", "b", "c"])),
            ("name in [a, b] and name in [b, c]", only(&["b"])),
            ("name == a and name == b", only(&[])),
            ("name =~ 'cache-.*'", Names::Prefix("cache-".into())),
            ("name =~ 'cache-.*' and name =~ 'ca.*'", Names::Prefix("cache-".into())),
            ("name =~ 'cache-.*' and name in [cache-1, db]", only(&["cache-1"])),
            ("name =~ 'caches?'", Names::Prefix("cache".into())),
            ("name =~ 'cach{0,1}'", Names::Prefix("cac".into())),
            ("name =~ 'a+b'", Names::Prefix("a".into())),
            ("name =~ 'x*'", Names::Any),
            ("name =~ 'a|b'", Names::Any),
            ("name =~ 'ab(c|d)'", Names::Any),
            ("name =~ '(?i)cache'", Names::Any),
            ("name == 5", Names::Any),
            ("name in [5, a]", Names::Any),
            ("name != cache", Names::Any),
            ("not name == cache", Names::Any),
            ("name not in [a]", Names::Any),
            ("name !~ 'a'", Names::Any),
            ("name == a or tag == hot", Names::Any),
            ("node == cache", Names::Any),
            ("name >= cache", Names::Any),
        ] {
            assert_eq!(names(query), wanted, "{query}");
        }
    }

    struct Named<'a>(&'a str);

    impl Fields for Named<'_> {
        fn any(&self, key: &str, test: &mut dyn FnMut(Value<'_>) -> bool) -> bool {
            match key {
                "name" => test(Value::Text(self.0)),
                "tag" => test(Value::Text("t")),
                _ => false,
            }
        }
    }

    fn admits(names: &Names, name: &str) -> bool {
        match names {
            Names::Any => true,
            Names::Prefix(prefix) => name.starts_with(&**prefix),
            Names::Only(only) => only.iter().any(|n| **n == *name),
        }
    }

    fn queries() -> impl Strategy<Value = String> {
        let leaf = prop_oneof![
            "name (==|!=|<|>=) '[ab5]{1,3}'",
            "name == 5",
            "name (in|not in) \\['[ab]{1,2}', '[ab]{1,2}'\\]",
            "name in \\[5, b\\]",
            r"name (=~|!~) '(\(\?i\))?[ab]{1,2}[*+?.]?[ab]?(\{0,1\})?(\|b)?'",
            "(tag == t|has x)",
        ];
        leaf.prop_recursive(4, 12, 3, |inner| {
            prop_oneof![
                (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("({a} and {b})")),
                (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("({a} or {b})")),
                inner.prop_map(|a| format!("not ({a})")),
            ]
        })
    }

    proptest! {
        /// What fits has such a name: an index by names misses nothing.
        #[test]
        fn nothing_that_fits_is_left_out(text in queries(), name in "[abAB5]{1,4}") {
            if let Ok(query) = Query::parse(&text) {
                prop_assert!(!query.matches(&Named(&name)) || admits(query.names(), &name), "{} {}", text, name);
            }
        }
    }
}
