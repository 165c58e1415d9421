//! Texts that the grammars let through, and grammars that are refused.

mod calls;
mod formats;
mod hostile;

use serde_json::{Value, json};

use super::*;

pub(crate) fn tokenizer() -> &'static Tokenizer {
    static TOKENIZER: std::sync::OnceLock<Tokenizer> = std::sync::OnceLock::new();
    TOKENIZER.get_or_init(|| {
        let json = include_bytes!("../../../../../models/demo/checkpoint/tokenizer.json");
        Tokenizer::from_json(json).expect("the demo model's tokenizer loads")
    })
}

/// Numbers without a pattern, the same for the same seed.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, n: usize) -> usize {
        const STEP: u64 = 6_364_136_223_846_793_005;
        self.0 = self.0.wrapping_mul(STEP).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }

    pub(crate) fn pick<'a, T: ?Sized>(&mut self, from: &[&'a T]) -> &'a T {
        from[self.below(from.len())]
    }
}

pub(crate) fn ids(words: &[u32]) -> Vec<u32> {
    let all = 0..words.len() as u32 * 32;
    all.filter(|id| words[*id as usize / 32] >> (id % 32) & 1 == 1).collect()
}

/// Pieces that chance would not find, but that end what has been begun.
const SCRIPTS: [&str; 6] =
    ["\n</parameter>\n<parameter=", "\n</parameter>\n</function>", "</function>\n", "\"", "}", "]"];

/// Goes its way by chance through what is allowed.
pub(crate) struct Wanderer {
    random: Random,
    script: std::collections::VecDeque<u32>,
    steps: usize,
}

impl Wanderer {
    pub(crate) fn new(seed: u64) -> Self {
        Wanderer { random: Random(seed), script: Default::default(), steps: 0 }
    }

    /// One of the tokens, of which there is at least one.
    pub(crate) fn choose(&mut self, words: &[u32]) -> u32 {
        let tokenizer = tokenizer();
        self.steps += 1;
        let ids = ids(words);
        assert!(!ids.is_empty());
        if self.script.is_empty() && (self.steps > 60 || self.random.below(4) == 0) {
            let text = self.random.pick(&SCRIPTS);
            self.script = tokenizer.encode(text).expect("text").into();
        }
        match self.script.pop_front() {
            Some(id) if ids.contains(&id) => id,
            _ => {
                self.script.clear();
                ids[self.random.below(ids.len())]
            }
        }
    }

    pub(crate) fn ends(&mut self) -> bool {
        self.steps > 60 || self.random.below(3) == 0
    }
}

/// Follows a grammar by chance; `None` if it has not ended within `limit` tokens.
fn wander(grammar: &Grammar, seed: u64, limit: usize) -> Option<Vec<u32>> {
    let mut wanderer = Wanderer::new(seed);
    let mut grammar = grammar.start();
    let mut tokens = Vec::new();
    for _ in 0..limit {
        match grammar.next(tokenizer()).expect("the grammar can be followed") {
            Next::End => return Some(tokens),
            Next::Tokens(_, true) if wanderer.ends() => return Some(tokens),
            Next::Tokens(words, _) if is_empty(&words) => return Some(tokens),
            Next::Tokens(words, _) => {
                let id = wanderer.choose(&words);
                grammar.take(id).expect("an allowed token");
                tokens.push(id);
            }
        }
    }
    None
}

/// Whether a grammar takes these tokens and may end there.
fn takes_tokens(grammar: &Grammar, tokens: &[u32]) -> bool {
    let mut grammar = grammar.start();
    for &id in tokens {
        match grammar.next(tokenizer()).expect("the grammar can be followed") {
            Next::Tokens(words, _) if ids(&words).contains(&id) => grammar.take(id).unwrap(),
            _ => return false,
        }
    }
    matches!(grammar.next(tokenizer()), Ok(Next::End | Next::Tokens(_, true)))
}

fn takes(grammar: &Grammar, text: &str) -> bool {
    takes_tokens(grammar, &tokenizer().encode(text).expect("text"))
}

fn of(format: Format) -> Grammar {
    Grammar::of_format(tokenizer(), &format).unwrap_or_else(|error| panic!("{error}"))
}

fn schema(schema: Value) -> Grammar {
    of(Format::JsonSchema(schema))
}

fn refused(format: Format) -> String {
    let error = Grammar::of_format(tokenizer(), &format).expect_err("a refusal");
    assert!(error.is_client_fault(), "{error:?}");
    error.to_string()
}

fn refused_schema(schema: Value) -> String {
    refused(Format::JsonSchema(schema))
}

/// A small schema by chance.
fn random_schema(random: &mut Random, depth: usize) -> Value {
    let kinds = if depth == 0 { 8 } else { 12 };
    match random.below(kinds) {
        0 => json!({"type": "string"}),
        1 => json!({"type": "string", "maxLength": random.below(12), "description": "short"}),
        2 => json!({"type": "string", "enum": ["a", "b b", "\"c\"\\"]}),
        3 => json!({"type": "string", "pattern": "^[a-c]{1,3}x?$"}),
        4 => json!({"type": "integer", "minimum": -3, "maximum": random.below(1000)}),
        5 => json!({"type": "number", "exclusiveMinimum": 0}),
        6 => json!({"type": ["boolean", "null"]}),
        7 => json!({"const": {"three": [null, 3, "drei"]}}),
        8 => json!({
            "type": "array",
            "items": random_schema(random, depth - 1),
            "minItems": random.below(2),
            "maxItems": 3,
        }),
        9 => json!({
            "anyOf": [random_schema(random, depth - 1), random_schema(random, depth - 1)],
        }),
        10 => json!({
            "type": "object",
            "properties": {
                "first": random_schema(random, depth - 1),
                "second": random_schema(random, depth - 1),
            },
            "required": [random.pick(&["first", "second"])],
        }),
        _ => json!({
            "type": "object",
            "properties": {
                "one": random_schema(random, depth - 1),
                "ünd \"zwei\"": random_schema(random, depth - 1),
            },
            "required": ["one", "ünd \"zwei\""],
            "additionalProperties": false,
        }),
    }
}

fn assert_valid(schema: &Value, text: &str) {
    let value: Value = match serde_json::from_str(text) {
        Ok(value) => value,
        // JSON as it stands, only larger than a double holds.
        Err(error) if error.to_string().starts_with("number out of range") => return,
        Err(error) => panic!("{error}: {text:?} for {schema}"),
    };
    let validator = jsonschema::validator_for(schema).expect("a valid schema");
    if let Err(error) = validator.validate(&value) {
        panic!("{error}: {text} for {schema}");
    }
}
