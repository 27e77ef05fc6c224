//! As much of the Common Expression Language as the shipped admission policies use, over JSON. A field that is null is
//! not there, as in Kubernetes' own types.

mod parse;

use std::borrow::Cow;
use std::cell::RefCell;
use std::cmp::Ordering;
use std::collections::BTreeMap;

use regex::bytes::{Regex, RegexBuilder};
use serde_json::{Map, Value, json};

use self::parse::Operator;
pub(super) use self::parse::{Expr, parse};
use crate::volume::capacity;

/// What an expression comes to.
#[derive(Debug, Clone, PartialEq)]
enum Val<'a> {
    Json(Cow<'a, Value>),
    /// A list that may have what is no JSON.
    List(Vec<Val<'a>>),
    Optional(Option<Box<Val<'a>>>),
    Quantity(u64),
    /// What the user is asked to be allowed: `authorizer.group(…).resource(…)`.
    Access(BTreeMap<&'a str, String>),
}

type Result<T> = std::result::Result<T, String>;

/// Whether the user is allowed this, by `group`, `resource`, `namespace` and `check`, each of which may be missing.
pub(super) type MayAccess = fn(&BTreeMap<&str, String>) -> bool;

/// What an expression is about.
pub(super) struct Scope<'a> {
    /// Such as `object` and `request`.
    names: BTreeMap<&'static str, &'a Value>,
    variables: &'a BTreeMap<String, Expr>,
    may_access: MayAccess,
    /// The variables that were asked for.
    known: RefCell<BTreeMap<&'a str, Result<Val<'a>>>>,
}

/// A name that a macro such as `all` gives to an item.
struct Local<'l, 'a> {
    name: &'a str,
    value: Val<'a>,
    outer: Option<&'l Local<'l, 'a>>,
}

type Locals<'l, 'a> = Option<&'l Local<'l, 'a>>;

impl<'a> Scope<'a> {
    pub(super) fn new(
        names: BTreeMap<&'static str, &'a Value>,
        variables: &'a BTreeMap<String, Expr>,
        may_access: MayAccess,
    ) -> Self {
        Self {
            names,
            variables,
            may_access,
            known: RefCell::default(),
        }
    }

    /// Whether it holds; `Err` if that can't be said.
    pub(super) fn holds(&self, expr: &'a Expr) -> Result<bool> {
        self.bool(expr, None)
    }

    fn bool(&self, expr: &'a Expr, locals: Locals<'_, 'a>) -> Result<bool> {
        let value = self.json(expr, locals)?;
        value.as_bool().ok_or_else(|| format!("{value} is not true or false"))
    }

    fn json(&self, expr: &'a Expr, locals: Locals<'_, 'a>) -> Result<Cow<'a, Value>> {
        self.eval(expr, locals)?.json()
    }

    fn text(&self, expr: &'a Expr, locals: Locals<'_, 'a>) -> Result<String> {
        text(&self.eval(expr, locals)?)
    }

    fn eval(&self, expr: &'a Expr, locals: Locals<'_, 'a>) -> Result<Val<'a>> {
        match expr {
            Expr::Literal(value) => Ok(Val::Json(Cow::Borrowed(value))),
            Expr::Name(name) => self.named(name, locals),
            Expr::Select { of, field, .. } if matches!(&**of, Expr::Name(name) if name == "variables") => {
                self.variable(field)
            }
            Expr::Select { of, field, optional } => member(self.eval(of, locals)?, field, *optional),
            Expr::Index { of, at, optional } => {
                let (of, at) = (self.eval(of, locals)?, self.json(at, locals)?);
                match (&*at, &of) {
                    (Value::String(key), _) => member(of, key, *optional),
                    (Value::Number(at), _) if !optional => {
                        let at = at.as_u64().and_then(|at| usize::try_from(at).ok());
                        let item = at.and_then(|at| items(of.clone()).ok()?.into_iter().nth(at));
                        item.ok_or_else(|| format!("{of:?} has no item {at:?}"))
                    }
                    _ => Err(format!("{of:?} has no {at}")),
                }
            }
            Expr::List(all) => {
                let all: Result<_> = all.iter().map(|item| self.eval(item, locals)).collect();
                Ok(Val::List(all?))
            }
            Expr::Map(entries) => {
                let mut map = Map::new();
                for (key, value) in entries {
                    map.insert(self.text(key, locals)?, self.json(value, locals)?.into_owned());
                }
                Ok(Val::of(Value::Object(map)))
            }
            Expr::Not(expr) => Ok(Val::of(!self.bool(expr, locals)?)),
            Expr::Binary(operator, left, right) => self.binary(*operator, left, right, locals),
            Expr::Conditional(parts) => {
                let [asked, then, otherwise] = &**parts;
                let chosen = if self.bool(asked, locals)? { then } else { otherwise };
                self.eval(chosen, locals)
            }
            Expr::Call {
                of: Some(of),
                name,
                arguments,
            } => match &arguments[..] {
                [] if name == "none" && **of == Expr::Name("optional".to_owned()) => Ok(Val::Optional(None)),
                [Expr::Name(item), each] if matches!(&name[..], "all" | "exists" | "filter" | "map") => {
                    self.each(name, self.eval(of, locals)?, item, each, locals)
                }
                _ => self.method(name, self.eval(of, locals)?, arguments, locals),
            },
            Expr::Call {
                of: None,
                name,
                arguments,
            } => self.function(name, arguments, locals),
        }
    }

    fn named(&self, name: &str, locals: Locals<'_, 'a>) -> Result<Val<'a>> {
        let mut at = locals;
        while let Some(local) = at {
            if local.name == name {
                return Ok(local.value.clone());
            }
            at = local.outer;
        }
        if name == "authorizer" {
            return Ok(Val::Access(BTreeMap::new()));
        }
        let known = self.names.get(name).ok_or_else(|| format!("there is no {name}"))?;
        Ok(Val::Json(Cow::Borrowed(*known)))
    }

    fn variable(&self, name: &str) -> Result<Val<'a>> {
        let (name, expr) = self.variables.get_key_value(name).ok_or("no such variable")?;
        let known = self.known.borrow().get(&name[..]).cloned();
        known.unwrap_or_else(|| {
            let value = self.eval(expr, None);
            self.known.borrow_mut().insert(name, value.clone());
            value
        })
    }

    fn binary(&self, operator: Operator, left: &'a Expr, right: &'a Expr, locals: Locals<'_, 'a>) -> Result<Val<'a>> {
        // Either side can decide, whatever is wrong with the other.
        let decided_by = match operator {
            Operator::Or => Some(true),
            Operator::And => Some(false),
            _ => None,
        };
        if let Some(decides) = decided_by {
            let left = self.bool(left, locals);
            if left == Ok(decides) {
                return Ok(Val::of(decides));
            }
            return match self.bool(right, locals)? {
                right if right == decides => Ok(Val::of(right)),
                right => left.map(|_| Val::of(right)),
            };
        }
        let (left, right) = (self.eval(left, locals)?, self.eval(right, locals)?);
        let compared = |is: fn(Ordering) -> bool| match (left.json()?.as_i64(), right.json()?.as_i64()) {
            (Some(left), Some(right)) => Ok(Val::of(is(left.cmp(&right)))),
            _ => Err(format!("{left:?} and {right:?} are no numbers")),
        };
        match operator {
            Operator::Equal => Ok(Val::of(left.is_same(&right))),
            Operator::Unequal => Ok(Val::of(!left.is_same(&right))),
            Operator::Less => compared(Ordering::is_lt),
            Operator::AtMost => compared(Ordering::is_le),
            Operator::Greater => compared(Ordering::is_gt),
            Operator::AtLeast => compared(Ordering::is_ge),
            Operator::In => Ok(Val::of(items(right)?.iter().any(|item| item.is_same(&left)))),
            Operator::Plus => match (left, right) {
                (Val::Json(left), Val::Json(right)) if left.is_string() => {
                    Ok(Val::of(text(&Val::Json(left))? + &text(&Val::Json(right))?))
                }
                (left, right) => {
                    let mut all = items(left)?;
                    all.extend(items(right)?);
                    Ok(Val::List(all))
                }
            },
            Operator::Minus => match (left.json()?.as_i64(), right.json()?.as_i64()) {
                (Some(left), Some(right)) => Ok(Val::of(left - right)),
                _ => Err(format!("{left:?} - {right:?}")),
            },
            Operator::Or | Operator::And => Err("decided above".to_owned()),
        }
    }

    /// A macro over the items of a list, or the keys of a map.
    fn each(
        &self,
        macro_name: &str,
        of: Val<'a>,
        name: &'a str,
        expr: &'a Expr,
        outer: Locals<'_, 'a>,
    ) -> Result<Val<'a>> {
        let (mut made, mut wrong) = (vec![], None);
        for item in items(of)? {
            let local = Local {
                name,
                value: item.clone(),
                outer,
            };
            if macro_name == "map" {
                made.push(self.eval(expr, Some(&local))?);
                continue;
            }
            match (macro_name, self.bool(expr, Some(&local))) {
                // One decides, whatever is wrong with others.
                ("all", Ok(false)) => return Ok(Val::of(false)),
                ("exists", Ok(true)) => return Ok(Val::of(true)),
                ("filter", Ok(true)) => made.push(item),
                (_, Ok(_)) => {}
                (_, Err(error)) => wrong = Some(error),
            }
        }
        match (macro_name, wrong) {
            (_, Some(error)) => Err(error),
            ("all", None) => Ok(Val::of(true)),
            ("exists", None) => Ok(Val::of(false)),
            _ => Ok(Val::List(made)),
        }
    }

    fn function(&self, name: &str, arguments: &'a [Expr], locals: Locals<'_, 'a>) -> Result<Val<'a>> {
        match (name, arguments) {
            ("has", [Expr::Select { of, field, .. }]) => {
                let member = member(self.eval(of, locals)?, field, true)?;
                Ok(Val::of(member != Val::Optional(None)))
            }
            ("dyn" | "string", [of]) => self.eval(of, locals),
            ("quantity", [of]) => {
                let bytes = capacity::parse(&self.text(of, locals)?).map_err(|error| error.to_string())?;
                Ok(Val::Quantity(bytes))
            }
            _ => Err(format!("there is no function {name} of {}", arguments.len())),
        }
    }

    fn method(&self, name: &'a str, of: Val<'a>, arguments: &'a [Expr], locals: Locals<'_, 'a>) -> Result<Val<'a>> {
        let unknown = || format!("there is no method {name} of {}", arguments.len());
        if let Val::Optional(of) = of {
            return match (name, arguments) {
                ("hasValue", []) => Ok(Val::of(of.is_some())),
                ("value", []) => of.map(|of| *of).ok_or_else(|| "there is no value".to_owned()),
                ("orValue", [other]) => of.map_or_else(|| self.eval(other, locals), |of| Ok(*of)),
                ("or", [_]) if of.is_some() => Ok(Val::Optional(of)),
                ("or", [other]) => self.eval(other, locals),
                _ => Err(unknown()),
            };
        }
        if let Val::Access(mut asked) = of {
            return match arguments {
                [] if name == "allowed" => Ok(Val::of((self.may_access)(&asked))),
                [what] => {
                    asked.insert(name, self.text(what, locals)?);
                    Ok(Val::Access(asked))
                }
                _ => Err(unknown()),
            };
        }
        if let (Val::Quantity(of), "isLessThan", [other]) = (&of, name, arguments) {
            return match self.eval(other, locals)? {
                Val::Quantity(other) => Ok(Val::of(*of < other)),
                other => Err(format!("{other:?} is no quantity")),
            };
        }
        let is_text = matches!(&of, Val::Json(of) if of.is_string());
        match (name, arguments) {
            ("size", []) if is_text => Ok(Val::of(text(&of)?.len())),
            ("size", []) => Ok(Val::of(items(of)?.len())),
            ("flatten", []) => {
                let all: Result<Vec<_>> = items(of)?.into_iter().map(items).collect();
                Ok(Val::List(all?.concat()))
            }
            ("join", [between]) => {
                let all: Result<Vec<_>> = items(of)?.iter().map(text).collect();
                Ok(Val::of(all?.join(&self.text(between, locals)?)))
            }
            ("substring", [from]) => {
                let (of, from) = (text(&of)?, self.json(from, locals)?.as_u64());
                let from = from.and_then(|from| usize::try_from(from).ok());
                let part = from.and_then(|from| of.get(from..));
                part.map(Val::of)
                    .ok_or_else(|| format!("{of} has no part from {from:?}"))
            }
            ("trim", []) => Ok(Val::of(text(&of)?.trim())),
            ("replace", [from, to]) => {
                let (from, to) = (self.text(from, locals)?, self.text(to, locals)?);
                Ok(Val::of(text(&of)?.replace(&from, &to)))
            }
            ("startsWith" | "endsWith" | "contains" | "matches" | "split", [other]) => {
                let (of, other) = (text(&of)?, self.text(other, locals)?);
                Ok(match name {
                    "startsWith" => Val::of(of.starts_with(&other)),
                    "endsWith" => Val::of(of.ends_with(&other)),
                    "contains" => Val::of(of.contains(&other)),
                    "matches" => Val::of(matches(&of, &other)?),
                    _ => Val::of(json!(of.split(&other[..]).collect::<Vec<_>>())),
                })
            }
            _ => Err(unknown()),
        }
    }
}

impl<'a> Val<'a> {
    fn of(value: impl Into<Value>) -> Self {
        Self::Json(Cow::Owned(value.into()))
    }

    fn json(&self) -> Result<Cow<'a, Value>> {
        match self {
            Self::Json(value) => Ok(value.clone()),
            Self::List(all) => {
                let all: Result<Vec<_>> = all.iter().map(|item| Ok(item.json()?.into_owned())).collect();
                Ok(Cow::Owned(json!(all?)))
            }
            other => Err(format!("{other:?} is no value")),
        }
    }

    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Optional(Some(one)), Self::Optional(Some(other))) => one.is_same(other),
            (Self::List(_), _) | (_, Self::List(_)) => self.json().is_ok_and(|one| other.json() == Ok(one)),
            _ => self == other,
        }
    }
}

fn text(value: &Val<'_>) -> Result<String> {
    match value.json()?.into_owned() {
        Value::String(text) => Ok(text),
        other => Err(format!("{other} is no text")),
    }
}

/// A field of an object, or an entry of a map.
fn member<'a>(of: Val<'a>, field: &str, optional: bool) -> Result<Val<'a>> {
    // A field of what is optional is optional itself.
    let (of, optional) = match of {
        Val::Optional(None) => return Ok(Val::Optional(None)),
        Val::Optional(Some(of)) => (*of, true),
        of => (of, optional),
    };
    let found = match &of {
        Val::Json(Cow::Borrowed(of)) => of.get(field).map(Cow::Borrowed),
        Val::Json(Cow::Owned(of)) => of.get(field).cloned().map(Cow::Owned),
        _ => None,
    };
    let found = found.filter(|found| !found.is_null()).map(Val::Json);
    match found {
        found if optional => Ok(Val::Optional(found.map(Box::new))),
        Some(found) => Ok(found),
        None => Err(format!("no such key: {field}")),
    }
}

/// The items of a list, or the keys of a map.
fn items(of: Val<'_>) -> Result<Vec<Val<'_>>> {
    match of {
        Val::List(all) => Ok(all),
        Val::Json(Cow::Borrowed(Value::Array(all))) => {
            Ok(all.iter().map(|item| Val::Json(Cow::Borrowed(item))).collect())
        }
        Val::Json(of) => match of.into_owned() {
            Value::Array(all) => Ok(all.into_iter().map(Val::of).collect()),
            Value::Object(map) => Ok(map.into_iter().map(|(key, _)| Val::of(key)).collect()),
            other => Err(format!("{other} has no items")),
        },
        other => Err(format!("{other:?} has no items")),
    }
}

fn matches(text: &str, pattern: &str) -> Result<bool> {
    thread_local! {
        static KNOWN: RefCell<BTreeMap<String, Regex>> = RefCell::default();
    }
    KNOWN.with_borrow_mut(|known| {
        if !known.contains_key(pattern) {
            let regex = RegexBuilder::new(pattern).unicode(false).build();
            known.insert(pattern.to_owned(), regex.map_err(|error| error.to_string())?);
        }
        Ok(known[pattern].is_match(text.as_bytes()))
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::{Value, json};

    use super::{Scope, parse};

    fn holds(text: &str) -> Result<bool, String> {
        let object = json!({"a": {"b": "x", "none": null, "list": [1, 2], "map": {"k/y": "v"}}, "size": "2Gi"});
        let (none, expr) = (Value::Null, parse(text)?);
        let variables = [("b".to_owned(), parse("object.a.b")?)].into();
        let names = BTreeMap::from([("object", &object), ("oldObject", &none)]);
        Scope::new(names, &variables, |asked| {
            asked.get("check").is_some_and(|verb| verb == "get")
        })
        .holds(&expr)
    }

    #[test]
    fn expressions_come_to_what_the_language_says() {
        for text in [
            "object.a.b == 'x' && !(object.a.b == \"y\")",
            "oldObject == null && object.a != null",
            "has(object.a.b) && !has(object.a.none) && !has(object.a.other)",
            "object.a.?other.?deep.orValue('n') == 'n' && object.a.?b.orValue('n') == 'x'",
            "object.a.map[?'k/y'].hasValue() && 'k/y' in object.a.map && !('z' in object.a.map)",
            "object.a.?x == object.a.?none && object.a.?b != object.a.?none && object.a.?x == optional.none()",
            "object.a.map[?'z'].or(object.a.map[?'k/y']).orValue('') == 'v'",
            "[object.a.?b, object.a.?x].filter(o, o.hasValue()).map(o, o.value()) == ['x']",
            "object.a.list.all(i, i > 0 && i <= 2) && object.a.list.exists(i, i in [2]) && object.a.list[1] == 2",
            "[[1], object.a.list].flatten().size() == 3 && ['a', 'b'].join('-') == 'a-b'",
            "'a-1b'.substring('a'.size()).matches(r'^-[0-9a-f]{1,2}$') && 'LABEL=x'.matches('^(?i:label)=')",
            "'a,b '.split(',').map(p, p.trim()) == ['a', 'b'] && 'aXb'.replace('X', '') == 'ab'",
            "object.a.b == 'y' ? false : object.a.b == 'z' ? false : 1 + 1 == 2 || true",
            "variables.b == 'x' && [variables.b].all(b, b == 'x')",
            "quantity('1Gi').isLessThan(quantity(object.size)) && !quantity('2Gi').isLessThan(quantity('2048Mi'))",
            "authorizer.group('').resource('secrets').check('get').allowed()",
            "!authorizer.group('').resource('secrets').check('delete').allowed()",
            // One side decides, whatever is wrong with the other.
            "object.nowhere == 1 || true",
            "!(object.nowhere == 1 && false)",
            "[0, 1].exists(i, i == 1 || object.nowhere)",
            r"'\\' == r'\'",
        ] {
            assert_eq!(holds(text), Ok(true), "{text}");
        }
    }

    #[test]
    fn an_expression_that_can_t_be_evaluated_is_an_error_and_never_a_guess() {
        for text in [
            "object.nowhere == 1",
            "object.a.b",
            "object.a.b.unheard()",
            "unheard(object)",
            "object.a.b ==",
            "object.a.b == 'x' 'y'",
            "'no end",
            "variables.unheard",
            "object.a.list[2] == 1",
            "object.a.b + 1 == 'x1'",
            "Object{a: 1}",
        ] {
            assert!(holds(text).is_err(), "{text}");
        }
    }
}
