//! The translation: what each form becomes, and what is refused where.

use lily_kernels::translate::{self, BufferKind, Problem, TranslateError, Translated};

/// A kernel around the given body, and one instantiation of it.
fn kernel(body: &str) -> String {
    format!(
        "using namespace metal;\n#line 1 \"kernels/k.metal\"\n\
         template <typename T, int K>\n\
         [[kernel, max_total_threads_per_threadgroup(K * 32)]] void f(\n\
         const device T* x [[buffer(0)]], device float* y [[buffer(1)]], constant P& p [[buffer(2)]],\n\
         uint tid [[thread_index_in_threadgroup]]) {{\n{body}\n}}\n\
         template [[host_name(\"f_a\")]] [[kernel]] decltype(f<bfloat, 4>) f<bfloat, 4>;\n"
    )
}

fn host(source: &str) -> Translated {
    translate::host(source).unwrap_or_else(|error| panic!("{error}"))
}

fn cuda(source: &str) -> Translated {
    translate::cuda(source).unwrap_or_else(|error| panic!("{error}"))
}

#[track_caller]
fn assert_contains(translated: &Translated, expected: &str) {
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let code = words(&translated.code);
    assert!(code.contains(&words(expected)), "{expected}\nis not in\n{}", translated.code);
}

/// Every back end refuses alike.
#[track_caller]
fn refused(source: &str) -> TranslateError {
    let error = translate::host(source).map(|t| t.code).expect_err("it is not part of the dialect");
    assert_eq!(translate::cuda(source).map(|t| t.code), Err(error.clone()));
    error
}

#[track_caller]
fn refused_body(body: &str, line: usize, problem: Problem) {
    let error = refused(&kernel(body));
    assert_eq!(error.problem, problem);
    // The body begins on line 5 of the file that `#line` names.
    assert_eq!((error.at.file.as_str(), error.at.line), ("kernels/k.metal", line));
}

#[test]
fn an_instantiation_becomes_an_entry_with_its_buffers_by_index() {
    let translated = cuda(&kernel(""));
    let [entry] = translated.entries.as_slice() else { panic!("one entry") };
    assert_eq!(entry.host_name, "f_a");
    assert_eq!(entry.args, ["bfloat", "4"]);
    assert_eq!(entry.max_threads.as_deref(), Some("4 * 32"));
    let buffers: Vec<_> =
        entry.buffers.iter().map(|b| (b.name.as_str(), b.element.as_str(), b.kind)).collect();
    assert_eq!(
        buffers,
        [
            ("x", "bfloat", BufferKind::Pointer { writable: false }),
            ("y", "float", BufferKind::Pointer { writable: true }),
            ("p", "P", BufferKind::Value),
        ]
    );
    assert_contains(
        &translated,
        "extern \"C\" __global__ void __launch_bounds__(4 * 32) f_a(const bfloat* x, float* y, \
         const __grid_constant__ P p, const __grid_constant__ ahead_ ahead) \
         { LILY_BEGIN(ahead); f<bfloat, 4>(x, y, p); }",
    );
}

#[test]
fn a_kernel_in_clusters_says_so_to_cuda() {
    let source = |n: &str| {
        format!(
            "template <int CLUSTER> [[kernel, max_total_threads_per_threadgroup(32)]] void f(\
             device float* y [[buffer(0)]]) {{ y[0] = CLUSTER; }}\n\
             template [[host_name(\"f_a\")]] [[kernel]] decltype(f<{n}>) f<{n}>;"
        )
    };
    let four = cuda(&source("4"));
    assert_contains(&four, "__cluster_dims__(4, 1, 1) __launch_bounds__(32) f_a(");
    let one = cuda(&source("1"));
    assert!(!one.code.contains("__cluster_dims__"), "{}", one.code);
}

#[test]
fn the_entry_for_the_host_wraps_each_binding() {
    assert_contains(
        &host(&kernel("")),
        "void lily_entry_f_a(const ::lily::binding* b) { f<bfloat, 4>(::lily::ptr<const bfloat>(b[0]), \
         ::lily::ptr<float>(b[1]), ::lily::value<P>(b[2])); }",
    );
}

#[test]
fn arguments_that_are_templates_themselves_are_put_in_whole() {
    let source = "template <typename F, typename T> [[kernel]] void g(\
                  const device typename F::word_t* w [[buffer(0)]], device T* y [[buffer(1)]]) {}\n\
                  template [[host_name(\"g_1\")]] [[kernel]] decltype(g<affine<4, 64, bfloat>, float>) \
                  g<affine<4, 64, bfloat>, float>;";
    let translated = cuda(source);
    assert_eq!(translated.entries[0].args, ["affine<4, 64, bfloat>", "float"]);
    assert_contains(&translated, "g_1(const typename affine<4, 64, bfloat>::word_t* w, float* y, ");
}

#[test]
fn pointers_into_buffers_become_checked_ones_on_the_host_and_plain_ones_in_cuda() {
    let source =
        kernel("const device uint4* w = (const device uint4*)x + tid; *(device float2*)y = 1;");
    assert_contains(
        &host(&source),
        "::lily::ptr<const uint4> w = (::lily::ptr<const uint4>)x + tid;",
    );
    assert_contains(&host(&source), "*(::lily::ptr<float2>)y = 1;");
    assert_contains(&cuda(&source), "const uint4* w = (const uint4*)x + tid;");
}

#[test]
fn private_pointers_and_references_stay_plain() {
    let source = "METAL_FUNC void g(thread float* a, const thread T& b, thread float (&c)[4], device int& d) {}";
    assert_contains(&host(source), "void g(float* a, const T& b, float (&c)[4], int& d)");
    assert_contains(&cuda(source), "void g(float* a, const T& b, float (&c)[4], int& d)");
}

#[test]
fn a_reinterpreted_pointer_becomes_a_conversion_on_the_host() {
    let source = kernel(
        "auto w = reinterpret_cast<const device uint*>(x); auto v = reinterpret_cast<thread uint*>(q);",
    );
    assert_contains(&host(&source), "static_cast<::lily::ptr<const uint>>(x)");
    assert_contains(&host(&source), "reinterpret_cast<uint*>(q)");
}

#[test]
fn threadgroup_memory_becomes_shared_memory_and_a_declaration_of_the_host() {
    let source = kernel("threadgroup float xs[K / 2][K + 1];\nalignas(32) threadgroup uint n;");
    assert_contains(&cuda(&source), "__shared__ __align__(16) float xs[K / 2][K + 1];");
    assert_contains(&cuda(&source), "__shared__ __align__(32) uint n;");
    assert_contains(&host(&source), "LILY_THREADGROUP(float, xs, [K / 2][K + 1]);");
    assert_contains(&host(&source), "LILY_THREADGROUP(uint, n, );");
}

#[test]
fn threadgroup_memory_of_a_type_with_commas_goes_through_a_typedef() {
    let source = kernel("threadgroup vec<T, 4> xs[K];");
    assert_contains(
        &host(&source),
        "typedef vec<T, 4> xs_element; LILY_THREADGROUP(xs_element, xs, [K]);",
    );
}

#[test]
fn built_in_parameters_become_variables() {
    assert_contains(&host(&kernel("")), "uint tid = tid_<uint>();");
    assert_contains(&cuda(&kernel("")), "uint tid = tid_<uint>();");
}

#[test]
fn swizzles_become_calls_and_single_components_stay() {
    let source = kernel("float2 a = v.xy + w->zw; float b = v.x;");
    assert_contains(&cuda(&source), "float2 a = v.xy_() + w->zw_(); float b = v.x;");
}

#[test]
fn unrolling_is_a_pragma_of_each_compiler_also_inside_a_macro() {
    let source =
        "#define UNROLL _Pragma(\"clang loop unroll(full)\")\nvoid g() { UNROLL for (;;) {} }";
    assert_contains(&cuda(source), "#define UNROLL _Pragma(\"unroll\")");
    assert_contains(&host(source), "#define UNROLL void g() {");
}

#[test]
fn constants_of_the_program_become_constants_and_tables() {
    let source = "constant float A = 1.0f;\nconstant constexpr uint T[2] = {1, 2};";
    assert_contains(&cuda(source), "static constexpr float A = 1.0f;");
    assert_contains(&cuda(source), "__constant__ const uint T[2] = {1, 2};");
    assert_contains(&host(source), "static const uint T[2] = {1, 2};");
}

#[test]
fn a_method_loses_the_space_of_this() {
    let source = "struct S { float v[2]; thread float& at(int i) thread { return v[i]; } \
                  float sum() const thread { return v[0]; } };";
    assert_contains(&host(source), "float& at(int i) { return v[i]; }");
    assert_contains(&cuda(source), "float sum() const { return v[0]; }");
}

#[test]
fn code_after_a_kernel_keeps_its_lines() {
    let translated = cuda(&kernel("int a;"));
    let code: Vec<&str> = translated.code.lines().collect();
    let body = code.iter().position(|l| l.contains("int a;")).unwrap();
    assert_eq!(code[body - 2..body], ["#line 4 \"kernels/k.metal\"", ""]);
}

#[test]
fn system_includes_and_metals_namespace_are_left_out() {
    let translated =
        cuda("#include <metal_stdlib>\nusing namespace metal;\nusing namespace other;");
    assert!(!translated.code.contains("include"));
    assert!(translated.code.contains("using namespace other;"));
}

#[test]
fn address_spaces_in_the_wrong_place_are_refused() {
    refused_body("int a;\nuint4 device* w = 0;", 6, Problem::SpaceBehindType);
    refused_body("device float w;", 5, Problem::SpaceOfVariable("device"));
    refused_body("const device thread float* w = 0;", 5, Problem::TwoSpaces);
    refused_body("const device uint4 thread* w = 0;", 5, Problem::SpaceBehindType);
}

#[test]
fn pointers_to_pointers_and_to_arrays_are_refused() {
    refused_body("device float** p = 0;", 5, Problem::PointerToPointer);
    refused_body("\nthreadgroup float (*p)[4] = 0;", 6, Problem::PointerToArray);
}

#[test]
fn threadgroup_memory_is_refused_outside_a_kernels_outermost_level() {
    refused_body("if (tid == 0) { threadgroup float xs[4]; }", 5, Problem::StorageOutsideKernel);
    let error = refused("void g() {\n  threadgroup float xs[4];\n}");
    assert_eq!((error.problem, error.at.line), (Problem::StorageOutsideKernel, 2));
    assert_eq!(refused("threadgroup float xs[4];").problem, Problem::StorageOutsideKernel);
}

#[test]
fn threadgroup_memory_with_an_initialiser_or_a_second_name_is_refused() {
    refused_body("threadgroup float a = 1.0f;", 5, Problem::StorageForm("=".into()));
    refused_body("threadgroup float a[2], b[2];", 5, Problem::StorageForm(",".into()));
}

#[test]
fn an_unknown_attribute_is_refused() {
    refused_body("int a [[unused]];", 5, Problem::Attribute("[[unused]]".into()));
    let source = kernel("").replace("thread_index_in_threadgroup", "thread_index_in_threadgruop");
    let error = refused(&source);
    assert_eq!(error.problem, Problem::Attribute("thread_index_in_threadgruop".into()));
    let source = kernel("").replace("max_total", "maximal");
    assert!(matches!(refused(&source).problem, Problem::Attribute(_)));
}

#[test]
fn function_constants_are_refused() {
    let error = refused("constant bool FAST [[function_constant(0)]];");
    assert!(matches!(error.problem, Problem::Attribute(_)), "{error}");
}

#[test]
fn buffer_indices_with_a_gap_or_twice_are_refused() {
    let gap = refused(&kernel("").replace("buffer(2)", "buffer(3)"));
    assert_eq!(gap.problem, Problem::BufferIndices { last: 2, found: 3 });
    let twice = refused(&kernel("").replace("buffer(1)", "buffer(0)"));
    assert_eq!(twice.problem, Problem::BufferIndices { last: 2, found: 0 });
}

#[test]
fn a_kernel_parameter_without_attribute_or_with_another_form_is_refused() {
    let bare = refused(&kernel("").replace(" [[buffer(1)]]", ""));
    assert_eq!(bare.problem, Problem::ParameterAttributes("y".into()));
    let reference = refused(&kernel("").replace("constant P&", "device P&"));
    assert_eq!(reference.problem, Problem::BufferForm("p".into()));
    let value = refused(&kernel("").replace("constant P&", "P"));
    assert_eq!(value.problem, Problem::BufferForm("p".into()));
}

#[test]
fn a_kernel_that_is_no_template_or_returns_something_is_refused() {
    let plain = "[[kernel]] void g(device float* y [[buffer(0)]]) {}";
    assert_eq!(refused(plain).problem, Problem::NoTemplate);
    assert_eq!(refused(&plain.replace("[[kernel]]", "kernel")).problem, Problem::NoTemplate);
    let returns = kernel("").replace(" void f", " int f");
    assert_eq!(refused(&returns).problem, Problem::NotVoid);
}

#[test]
fn an_instantiation_that_does_not_fit_is_refused() {
    let source = kernel("");
    let unknown = source.replace("decltype(f<bfloat, 4>) f<", "decltype(g<bfloat, 4>) g<");
    assert_eq!(refused(&unknown).problem, Problem::UnknownKernel("g".into()));
    let other = source.replace("decltype(f<bfloat, 4>)", "decltype(f<bfloat, 5>)");
    assert_eq!(refused(&other).problem, Problem::Instantiation);
    let few = source.replace("<bfloat, 4>", "<bfloat>");
    let template = "f".to_owned();
    assert_eq!(refused(&few).problem, Problem::ArgumentCount { template, expected: 2, found: 1 });
    let attribute = source.replace("host_name", "hostname");
    assert_eq!(refused(&attribute).problem, Problem::Attribute("hostname".into()));
    let last = source.lines().last().unwrap();
    let twice = refused(&format!("{source}{last}"));
    assert_eq!(twice.problem, Problem::HostNameTwice("f_a".into()));
}

#[test]
fn words_that_metal_lacks_are_refused() {
    for word in ["goto", "new", "throw", "double", "virtual", "asm"] {
        refused_body(&format!("\n\n{word} a;"), 7, Problem::Forbidden(word.into()));
    }
}

#[test]
fn half_literals_and_unknown_pragmas_are_refused() {
    refused_body("half a = 1.5h;", 5, Problem::HalfLiteral("1.5h".into()));
    refused_body("#pragma unroll\nfor (;;) {}", 5, Problem::Pragma("unroll".into()));
    let macro_error = refused("#define U _Pragma(\"clang loop vectorize(enable)\")\n");
    assert!(matches!(macro_error.problem, Problem::Pragma(_)), "{macro_error}");
}

#[test]
fn an_address_space_inside_a_macro_is_refused() {
    let error = refused("int a;\n#define P(T) device T*\n");
    assert_eq!(
        (error.problem, error.at.line),
        (Problem::SpaceInMacro("#define P(T) device T*".into()), 2)
    );
}

#[test]
fn unbalanced_brackets_are_refused_where_they_stand() {
    let error = refused("void g() {\n  (a];\n}");
    assert_eq!((error.problem, error.at.line), (Problem::Unbalanced("]".into()), 2));
}
