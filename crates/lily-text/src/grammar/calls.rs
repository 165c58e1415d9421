//! Tool calls as a grammar: the markup of this family, with the functions of the request.
//!
//! A value that is text stands in the markup as it is, and may hold anything, tags included. It ends
//! where the output parser ends it: at a closing tag that another tag of the format follows. So the
//! closing tag and the opening of what follows belong to one lexeme with the value, the shortest
//! that ends like that; what the parser would take for an end before is not part of any value.

use llguidance::api::GrammarWithLexer;
use serde_json::Value;

use super::error::GrammarError;
use super::lark::{escape, quote};
use super::parameters::{Content, Parameter, parameters};

/// A function that may be called.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Function<'a> {
    /// Position of its tool in the request.
    pub(crate) index: usize,
    pub(crate) name: &'a str,
    /// JSON schema of its parameters; none: there are none.
    pub(crate) parameters: Option<&'a Value>,
    /// Whether values must be valid for the schema. If not, any parameters are allowed.
    pub(crate) exact: bool,
}

/// How calls stand in the answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallForm {
    /// What the answer may be instead of calls, and what may stand before them.
    pub(crate) otherwise: Otherwise,
    /// Whether several calls may follow one another.
    pub(crate) several: bool,
}

/// What an answer may be made of besides calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Otherwise {
    /// Nothing: there is at least one call and no text.
    Nothing,
    /// A text of the grammar named `format`, and no call.
    Format,
    /// Free text, which calls may follow.
    Text,
}

/// A grammar that the one for calls refers to, and the tool it is for.
pub(crate) struct Part {
    pub(crate) grammar: GrammarWithLexer,
    pub(crate) tool: usize,
}

/// What ends a value before the lexeme does, as the output parser sees it, wherever it stands.
const FALSE_ENDS: [&str; 3] = [
    r"<\/parameter>[ \t\r\n]*<(parameter=|\/function>|\/tool_call>|tool_call>)",
    r"<\/function>[ \t\r\n]*<\/tool_call>",
    r"<\/tool_call>[ \t\r\n]*<tool_call>",
];

const CLOSE: &str = "</function>\\n</tool_call>";

/// The grammar of an answer with calls, and the grammars it refers to.
///
/// # Errors
/// [`GrammarError::Tool`] where a schema cannot be honoured.
pub(crate) fn call_grammars(
    functions: &[Function<'_>],
    form: CallForm,
) -> Result<(GrammarWithLexer, Vec<Part>), GrammarError> {
    let mut writer = Writer { text: String::new(), parts: Vec::new() };
    writer.start(form);
    let names: Vec<String> = (0..functions.len()).map(|n| format!("f{n}")).collect();
    writer.rule("call", &names.join(" | "));
    if functions.iter().any(|function| !function.exact) {
        writer.any_parameters();
    }
    for (n, function) in functions.iter().enumerate() {
        let tool = |refusal| GrammarError::Tool { index: function.index, refusal };
        if function.exact {
            let parameters = parameters(function.parameters, function.name).map_err(tool)?;
            writer.exact(n, function, &parameters);
        } else {
            let head = quote(&format!("{}>\n", function.name));
            writer.rule(&names[n], &format!("{head} \"{CLOSE}\" | {head} \"<parameter=\" any"));
        }
    }
    let mut grammar = GrammarWithLexer::from_lark(writer.text);
    grammar.name = Some("answer".to_owned());
    Ok((grammar, writer.parts))
}

struct Writer {
    text: String,
    parts: Vec<Part>,
}

impl Writer {
    fn rule(&mut self, name: &str, body: &str) {
        self.text.push_str(&format!("{name}: {body}\n"));
    }

    fn start(&mut self, form: CallForm) {
        let more = if form.several { " more*" } else { "" };
        let calls = format!("\"<tool_call>\\n<function=\" call{more}");
        match form.otherwise {
            Otherwise::Nothing => self.rule("start", &calls),
            Otherwise::Format => self.rule("start", &format!("@format | {calls}")),
            Otherwise::Text => {
                let head = format!("head \"\\n<function=\" call{more}");
                self.rule("start", &format!("TEXT | {head}"));
                // A bare function tag begins a call for the parser, too.
                self.rule("TEXT", r"/(?s:.+)/ & ~/(?s:.*)<(tool_call>|function=)(?s:.*)/");
                self.rule("head[lazy]", "HEAD");
                self.rule("HEAD", r"/(?s:.*)<tool_call>/ & ~/(?s:.*)<function=(?s:.*)/");
            }
        }
        if form.several {
            self.rule("more", "\"\\n<tool_call>\\n<function=\" call");
        }
    }

    /// Rules for parameters of any name with any text.
    fn any_parameters(&mut self) {
        self.rule("ANY", &format!("/(?s:.*)/{}", without(&FALSE_ENDS.join("|"), &[])));
        self.lexeme("any_next", "ANY", "<parameter=");
        self.lexeme("any_last", "ANY", "</function>");
        let name = r"/[^<>\n]{1,200}/";
        self.rule("NAME", name);
        self.rule("any", "NAME \">\\n\" any_next any | NAME \">\\n\" any_last \"\\n</tool_call>\"");
    }

    /// A value up to and with the opening of what follows.
    fn lexeme(&mut self, name: &str, content: &str, follower: &str) {
        let terminal = name.to_uppercase();
        self.rule(&format!("{name}[lazy]"), &terminal);
        let end = quote(&format!("\n</parameter>\n{follower}"));
        self.rule(&terminal, &format!("{content} {end}"));
    }

    /// Rules for a function whose parameters come in the order of its schema, each valid.
    fn exact(&mut self, n: usize, function: &Function<'_>, parameters: &[Parameter]) {
        let head = quote(&format!("{}>\n", function.name));
        let mut ways = Vec::new();
        if parameters.iter().all(|parameter| !parameter.required) {
            ways.push(format!("{head} \"{CLOSE}\""));
        }
        if !parameters.is_empty() {
            ways.push(format!("{head} \"<parameter=\" f{n}_from_0"));
        }
        self.rule(&format!("f{n}"), &ways.join(" | "));
        let names: Vec<String> = parameters.iter().map(|p| escape(&p.name)).collect();
        // The parser also takes the tag of a declared parameter at the start of a line for one.
        let tag = format!(r"<parameter=[ \t]*({})[ \t]*>", names.join("|"));
        let false_ends = format!(r"{}|\n{tag}", FALSE_ENDS.join("|"));
        for (k, parameter) in parameters.iter().enumerate() {
            let rest = &parameters[k + 1..];
            let mut ways = vec![format!("f{n}_p{k}")];
            if !parameter.required && !rest.is_empty() {
                ways.push(format!("f{n}_from_{}", k + 1));
            }
            self.rule(&format!("f{n}_from_{k}"), &ways.join(" | "));
            let next = (!rest.is_empty()).then(|| format!("f{n}_from_{}", k + 1));
            let may_be_last = rest.iter().all(|parameter| !parameter.required);
            self.value(&format!("f{n}_p{k}"), parameter, next, may_be_last);
            self.contents(&format!("f{n}_p{k}"), function, parameter, &false_ends, &tag);
        }
    }

    /// The rule of one parameter from its name on: `next` is the rule of those behind it.
    fn value(
        &mut self,
        rule: &str,
        parameter: &Parameter,
        next: Option<String>,
        may_be_last: bool,
    ) {
        let head = quote(&format!("{}>\n", parameter.name));
        let mut ways = Vec::new();
        let mut way = |before: &str, follower: &str| {
            if follower == "<parameter=" {
                if let Some(next) = &next {
                    ways.push(format!("{head} {before} {next}"));
                }
            } else if may_be_last {
                ways.push(format!("{head} {before} \"\\n</tool_call>\""));
            }
        };
        for (m, content) in parameter.contents.iter().enumerate() {
            for (follower, part) in [("<parameter=", "next"), ("</function>", "last")] {
                let end = quote(&format!("\n</parameter>\n{follower}"));
                match content {
                    Content::Literal(text) => way(&format!("{} {end}", quote(text)), follower),
                    Content::Json(_) => way(&format!("@{rule}_{m} {end}"), follower),
                    Content::Text { .. } => way(&format!("{rule}_{m}_{part}"), follower),
                }
            }
        }
        self.rule(rule, &ways.join(" | "));
    }

    /// Terminals and grammars of the values of one parameter.
    fn contents(
        &mut self,
        rule: &str,
        function: &Function<'_>,
        parameter: &Parameter,
        false_ends: &str,
        at_start: &str,
    ) {
        for (m, content) in parameter.contents.iter().enumerate() {
            match content {
                Content::Literal(_) => {}
                Content::Json(schema) => {
                    let mut grammar = GrammarWithLexer::from_json_schema(schema.clone());
                    grammar.name = Some(format!("{rule}_{m}"));
                    self.parts.push(Part { grammar, tool: function.index });
                }
                Content::Text { conjuncts, but } => {
                    let name = format!("{rule}_{m}");
                    let terminal = name.to_uppercase();
                    let at_start = format!("{at_start}(?s:.*)");
                    let whole: Vec<&str> = but.iter().copied().chain([at_start.as_str()]).collect();
                    let forbidden = without(false_ends, &whole);
                    self.rule(&terminal, &format!("{conjuncts}{forbidden}"));
                    self.lexeme(&format!("{name}_next"), &terminal, "<parameter=");
                    self.lexeme(&format!("{name}_last"), &terminal, "</function>");
                }
            }
        }
    }
}

/// A conjunct that no text meets which has one of the patterns `anywhere` in it, or is one of
/// `whole`. One complement, as several multiply the states of the lexer.
fn without(anywhere: &str, whole: &[&str]) -> String {
    let whole: String = whole.iter().map(|pattern| format!("|{pattern}")).collect();
    format!(" & ~/(?s:.*)({anywhere})(?s:.*){whole}/")
}
