//! The tools a request offers: what the model is told of them, and what a call
//! of the model means to the client.

use std::collections::HashMap;
use std::collections::HashSet;

use serde_json::Map;
use serde_json::Value;
use serde_json::json;

use crate::error::ApiError;
use crate::guide::ToolChoice;
use crate::json::Fields;
use crate::json::missing;
use crate::json::wrong_type;

/// The one parameter of a custom tool.
pub(super) const INPUT: &str = "input";

/// The tools of a request.
#[derive(Debug, Default)]
pub(super) struct Tools {
    offered: Vec<Offered>,
    /// As the request gave them, without those that cannot be called.
    pub(super) echo: Vec<Value>,
}

/// A tool that the model may call.
#[derive(Clone, Debug)]
pub(super) struct Offered {
    pub(super) namespace: Option<String>,
    pub(super) name: String,
    /// Its argument is one free text.
    pub(super) custom: bool,
    /// The form that templates take, under the name that the model uses.
    function: Value,
}

/// The name under which the model knows a tool.
pub(super) fn full_name(namespace: Option<&str>, name: &str) -> String {
    match namespace {
        Some(namespace) => format!("{namespace}.{name}"),
        None => name.to_owned(),
    }
}

impl Tools {
    /// Reads `tools`.
    pub(super) fn read(fields: &mut Fields) -> Result<Tools, ApiError> {
        let mut tools = Tools::default();
        for (index, tool) in fields.array("tools")?.unwrap_or_default().into_iter().enumerate() {
            let path = format!("tools[{index}]");
            if tools.add(&path, tool.clone(), None)? {
                tools.echo.push(tool);
            }
        }
        Ok(tools)
    }

    /// Reads `tool_choice`, and leaves only the tools that may be called.
    pub(super) fn choose(&mut self, choice: Value) -> Result<ToolChoice, ApiError> {
        const NAME: &str = "tool_choice";
        let chosen = match choice {
            Value::String(choice) => mode(NAME, &choice)?,
            value @ Value::Object(_) => self.choose_by_name(Fields::new(NAME, value)?)?,
            other => return Err(wrong_type(NAME, "a string or an object", &other)),
        };
        match chosen {
            ToolChoice::Required if self.offered.is_empty() => {
                Err(ApiError::field(NAME, "is \"required\", but there are no 'tools'"))
            }
            // Without tools there is nothing to keep out of reach.
            ToolChoice::None if self.offered.is_empty() => Ok(ToolChoice::Auto),
            ToolChoice::None => {
                // The model cannot call what it is not told of.
                self.offered.clear();
                Ok(ToolChoice::None)
            }
            chosen => Ok(chosen),
        }
    }

    fn choose_by_name(&mut self, mut choice: Fields) -> Result<ToolChoice, ApiError> {
        let kind = choice.string("type")?.ok_or_else(|| missing(choice.path("type")))?;
        if kind != "allowed_tools" {
            return named(&self.kinds(), choice, &kind).map(ToolChoice::Named);
        }
        let mode_path = choice.path("mode");
        let chosen = match choice.string("mode")?.as_deref() {
            Some(text @ ("auto" | "required")) => mode(&mode_path, text)?,
            Some(other) => {
                let complaint = format!("must be auto or required, not {other:?}");
                return Err(ApiError::field(mode_path, complaint));
            }
            None => return Err(missing(mode_path)),
        };
        let path = choice.path("tools");
        let references = choice.array("tools")?.ok_or_else(|| missing(&path))?;
        choice.finish()?;
        if references.is_empty() {
            return Err(ApiError::field(path, "must not be empty"));
        }
        let kinds = self.kinds();
        let mut names = HashSet::new();
        for (index, reference) in references.into_iter().enumerate() {
            let mut reference = Fields::new(format!("{path}[{index}]"), reference)?;
            let kind = reference.string("type")?.ok_or_else(|| missing(reference.path("type")))?;
            names.insert(named(&kinds, reference, &kind)?);
        }
        self.offered.retain(|tool| names.contains(&tool.full_name()));
        Ok(chosen)
    }

    /// Of each tool, by the name under which the model knows it, whether it is a custom one.
    fn kinds(&self) -> HashMap<String, bool> {
        let mut kinds = HashMap::with_capacity(self.offered.len());
        for tool in &self.offered {
            kinds.entry(tool.full_name()).or_insert(tool.custom);
        }
        kinds
    }

    /// What the template tells the model.
    pub(super) fn functions(&self) -> Option<Vec<Value>> {
        let functions: Vec<Value> = self.offered.iter().map(|tool| tool.function.clone()).collect();
        Some(functions).filter(|functions| !functions.is_empty())
    }

    /// The tool that the model calls by this name.
    pub(super) fn find(&self, full: &str) -> Option<&Offered> {
        self.offered.iter().find(|tool| tool.full_name() == full)
    }

    /// Takes a tool in; false if it can never be called and is left out.
    fn add(
        &mut self,
        path: &str,
        tool: Value,
        namespace: Option<&Namespace>,
    ) -> Result<bool, ApiError> {
        let mut fields = Fields::new(path, tool)?;
        let kind = fields.string("type")?.ok_or_else(|| missing(fields.path("type")))?;
        match (kind.as_str(), namespace) {
            ("function", _) => self.function(fields, namespace)?,
            ("custom", _) => self.custom(fields, namespace)?,
            ("namespace", None) => self.namespace(fields)?,
            ("web_search", None) => {
                web_search(&mut fields)?;
                return Ok(false);
            }
            (other, _) => {
                return Err(ApiError::unsupported(
                    fields.path("type"),
                    format_args!(
                        "must be \"function\" or \"custom\": this server has no {other:?}"
                    ),
                ));
            }
        }
        Ok(true)
    }

    fn function(
        &mut self,
        mut fields: Fields,
        namespace: Option<&Namespace>,
    ) -> Result<(), ApiError> {
        let name = name(&mut fields)?;
        let description = fields.string("description")?;
        let parameters = fields.object("parameters")?;
        let strict = fields.boolean("strict")? == Some(true);
        // Ignored: what a tool gives back is for the client to know.
        fields.object("output_schema")?;
        switches(&mut fields)?;
        fields.finish()?;
        self.offer(namespace, name, false, description, parameters);
        if let Some(Offered { function, .. }) = self.offered.last_mut().filter(|_| strict) {
            // Arguments are then held to the schema.
            function["function"]["strict"] = true.into();
        }
        Ok(())
    }

    /// A tool that takes a text without form becomes a function of one string.
    fn custom(
        &mut self,
        mut fields: Fields,
        namespace: Option<&Namespace>,
    ) -> Result<(), ApiError> {
        let name = name(&mut fields)?;
        let description = fields.string("description")?;
        if let Some(format) = fields.value("format") {
            let mut format = Fields::new(fields.path("format"), format)?;
            match format.string("type")?.as_deref() {
                Some("text") => {}
                Some(other) => {
                    return Err(ApiError::unsupported(
                        format.path("type"),
                        format_args!("must be \"text\": {other:?} is not supported"),
                    ));
                }
                None => return Err(missing(format.path("type"))),
            }
            format.finish()?;
        }
        switches(&mut fields)?;
        fields.finish()?;
        let schema = json!({
            "type": "object",
            "properties": {INPUT: {"type": "string"}},
            "required": [INPUT],
        });
        let Value::Object(schema) = schema else { return Ok(()) };
        self.offer(namespace, name, true, description, Some(schema));
        Ok(())
    }

    fn namespace(&mut self, mut fields: Fields) -> Result<(), ApiError> {
        let namespace =
            Namespace { name: name(&mut fields)?, description: fields.string("description")? };
        let path = fields.path("tools");
        let tools = fields.array("tools")?.ok_or_else(|| missing(&path))?;
        fields.finish()?;
        for (index, tool) in tools.into_iter().enumerate() {
            self.add(&format!("{path}[{index}]"), tool, Some(&namespace))?;
        }
        Ok(())
    }

    fn offer(
        &mut self,
        namespace: Option<&Namespace>,
        name: String,
        custom: bool,
        description: Option<String>,
        parameters: Option<Map<String, Value>>,
    ) {
        let mut function = Map::new();
        let full = full_name(namespace.map(|namespace| namespace.name.as_str()), &name);
        function.insert("name".to_owned(), full.into());
        let shared = namespace.and_then(|namespace| namespace.description.clone());
        let description: Vec<String> = shared.into_iter().chain(description).collect();
        if !description.is_empty() {
            function.insert("description".to_owned(), description.join("\n\n").into());
        }
        if let Some(parameters) = parameters {
            function.insert("parameters".to_owned(), parameters.into());
        }
        self.offered.push(Offered {
            namespace: namespace.map(|namespace| namespace.name.clone()),
            name,
            custom,
            function: json!({"type": "function", "function": function}),
        });
    }
}

impl Offered {
    pub(super) fn full_name(&self) -> String {
        full_name(self.namespace.as_deref(), &self.name)
    }
}

/// The tool that `fields` names, by the name under which the model knows it.
fn named(
    kinds: &HashMap<String, bool>,
    mut fields: Fields,
    kind: &str,
) -> Result<String, ApiError> {
    if !["function", "custom"].contains(&kind) {
        return Err(ApiError::unsupported(
            fields.path("type"),
            format_args!("must be function, custom or allowed_tools, not {kind:?}"),
        ));
    }
    let path = fields.path("name");
    let name = fields.string("name")?.ok_or_else(|| missing(&path))?;
    let namespace = fields.string("namespace")?;
    fields.finish()?;
    let full = full_name(namespace.as_deref(), &name);
    if kinds.get(&full) == Some(&(kind == "custom")) {
        return Ok(full);
    }
    let complaint = format!("is {full:?}, which is no {kind} tool of this request");
    Err(ApiError::field(path, complaint))
}

fn mode(field: &str, text: &str) -> Result<ToolChoice, ApiError> {
    match text {
        "auto" => Ok(ToolChoice::Auto),
        "none" => Ok(ToolChoice::None),
        "required" => Ok(ToolChoice::Required),
        other => Err(ApiError::field(
            field,
            format_args!("must be none, auto, required or name a tool, not {other:?}"),
        )),
    }
}

/// Tools that belong together; the description goes with each of them.
struct Namespace {
    name: String,
    description: Option<String>,
}

fn name(fields: &mut Fields) -> Result<String, ApiError> {
    let name = fields.string("name")?.ok_or_else(|| missing(fields.path("name")))?;
    if name.is_empty() || name.contains(['<', '>', '\n']) {
        let complaint = "must not be empty or contain '<', '>' or line breaks";
        return Err(ApiError::field(fields.path("name"), complaint));
    }
    Ok(name)
}

/// What tools of all kinds may say about when they are called.
fn switches(fields: &mut Fields) -> Result<(), ApiError> {
    for name in ["defer_loading", "async"] {
        if fields.boolean(name)? == Some(true) {
            return Err(ApiError::unsupported(fields.path(name), "must be false"));
        }
    }
    let callers = fields.array("allowed_callers")?;
    if callers.is_some_and(|callers| !callers.contains(&json!("direct"))) {
        let path = fields.path("allowed_callers");
        return Err(ApiError::unsupported(path, "must contain \"direct\""));
    }
    Ok(())
}

/// A search without access to the web, which Codex offers in every request: there
/// is nothing to find in, so the model is not told of it. With access it is
/// refused like all tools that this server would have to run.
fn web_search(fields: &mut Fields) -> Result<(), ApiError> {
    if fields.boolean("external_web_access")? == Some(false) {
        return Ok(());
    }
    Err(ApiError::unsupported(
        fields.path("type"),
        "must be \"function\" or \"custom\": this server cannot search the web",
    ))
}
