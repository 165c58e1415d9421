// Pointers of the address spaces device, constant and threadgroup: they know what they point into.
#pragma once

// Where the library lies in memory; the linker defines it.
extern "C" __attribute__((visibility("hidden"))) const char __ehdr_start;

namespace lily {

[[noreturn, gnu::noinline, gnu::cold]] inline void bad_access(const region& r, const void* p, size_t size, size_t align) {
  machine& m = self();
  fault& f = *m.report;
  const bool inside = (char*)p >= r.begin && (char*)p + size <= r.end;
  f.kind = inside ? fault_kind::ALIGNMENT : fault_kind::BOUNDS;
  f.binding = r.index;
  f.offset = (char*)p - r.begin;
  f.bytes = r.end - r.begin;
  f.size = inside ? align : size;
  f.address = (char*)__builtin_return_address(0) - &__ehdr_start;
  if (r.name) snprintf(f.name, sizeof f.name, "%s", r.name);
  stop(m);
}

[[noreturn, gnu::noinline, gnu::cold]] inline void unknown_memory(const void* p) {
  machine& m = self();
  m.report->kind = fault_kind::UNKNOWN_MEMORY;
  m.report->address = (char*)__builtin_return_address(0) - &__ehdr_start;
  snprintf(m.report->text, sizeof m.report->text, "%p", p);
  stop(m);
}

// The buffer or array that holds an address (`&p[i]` loses what `p + i` keeps), or null.
inline const region* find_region(const void* p) {
  machine& m = self();
  const auto holds = [p](const region& r) { return (char*)p >= r.begin && (char*)p < r.end; };
  for (uint32_t i = 0; i < m.job->n_bindings; i++) {
    if (holds(m.buffers[i])) return &m.buffers[i];
  }
  for (uint32_t i = 0; i < m.n_arrays; i++) {
    if (holds(m.arrays[i])) return &m.arrays[i];
  }
  return nullptr;
}

template <class T> struct ptr;

// Read-only. Memory without a region is a table of the program.
template <class T> struct ptr<const T> {
  const T* at;
  const region* in;

  ptr() = default;
  ptr(decltype(nullptr)) : at(nullptr), in(nullptr) {}
  ptr(const T* p, const region* r) : at(p), in(r) {}
  ptr(const T* p) : at(p), in(find_region(p)) {}
  explicit ptr(const binding& b) : at((const T*)b.base), in(&self().buffers[b.index]) {}
  template <class U> explicit ptr(const ptr<U>& p) : at((const T*)p.at), in(p.in) {}

  const T& checked(const T* p) const {
    if (!in && !at) [[unlikely]] unknown_memory(p);
    if (in && (((char*)p < in->begin) | ((char*)(p + 1) > in->end) | (((uintptr_t)p & (alignof(T) - 1)) != 0)))
      [[unlikely]] bad_access(*in, p, sizeof(T), alignof(T));
    return *p;
  }
  const T& operator*() const { return checked(at); }
  const T* operator->() const { return &checked(at); }
  template <class I> const T& operator[](I i) const { return checked(at + i); }
  explicit operator bool() const { return at != nullptr; }

  template <class I> ptr& operator+=(I n) { at += n; return *this; }
  template <class I> ptr& operator-=(I n) { at -= n; return *this; }
  ptr& operator++() { at++; return *this; }
  ptr& operator--() { at--; return *this; }
  ptr operator++(int) { ptr old = *this; at++; return old; }
  ptr operator--(int) { ptr old = *this; at--; return old; }
  template <class I> friend ptr operator+(ptr p, I n) { return {p.at + n, p.in}; }
  template <class I> friend ptr operator-(ptr p, I n) requires(!__is_class(I)) { return {p.at - n, p.in}; }
  friend ptrdiff_t operator-(ptr p, ptr q) { return p.at - q.at; }
  friend bool operator==(ptr p, ptr q) { return p.at == q.at; }
  friend auto operator<=>(ptr p, ptr q) { return p.at <=> q.at; }
};

// Derived, so that `const device T*` is deduced from a pointer to writable memory as in Metal.
template <class T> struct ptr : ptr<const T> {
  using base = ptr<const T>;

  ptr() = default;
  ptr(decltype(nullptr)) : base(nullptr) {}
  ptr(T* p, const region* r) : base(p, r) {}
  ptr(T* p) : base(p) {
    if (p && !this->in) unknown_memory(p);
  }
  explicit ptr(const binding& b) : base(b) {}
  template <class U> requires(!__is_const(U)) explicit ptr(const ptr<U>& p) : base(p) {}

  T* raw() const { return const_cast<T*>(this->at); }
  T& operator*() const { return const_cast<T&>(this->checked(this->at)); }
  T* operator->() const { return &**this; }
  template <class I> T& operator[](I i) const { return const_cast<T&>(this->checked(this->at + i)); }

  template <class I> ptr& operator+=(I n) { this->at += n; return *this; }
  template <class I> ptr& operator-=(I n) { this->at -= n; return *this; }
  ptr& operator++() { this->at++; return *this; }
  ptr& operator--() { this->at--; return *this; }
  ptr operator++(int) { ptr old = *this; this->at++; return old; }
  ptr operator--(int) { ptr old = *this; this->at--; return old; }
  template <class I> friend ptr operator+(ptr p, I n) { return {p.raw() + n, p.in}; }
  template <class I> friend ptr operator-(ptr p, I n) requires(!__is_class(I)) { return {p.raw() - n, p.in}; }
};

// A `constant T&` argument.
template <class T> inline const T& value(const binding& b) { return *ptr<const T>(b); }

// ---- threadgroup memory ------------------------------------------------------------------------------------------

// The array of this declaration: the first thread to come makes it.
inline const region* threadgroup_region(const void* key, const char* name, size_t bytes, size_t align) {
  machine& m = self();
  const uint32_t group = threadgroup_of(m);
  for (uint32_t i = 0; i < m.n_arrays; i++) {
    if (m.arrays[i].key == key && m.arrays[i].group == group) return &m.arrays[i];
  }
  const size_t begin = (m.used_bytes[group] + align - 1) / align * align;
  if (begin + bytes > MAX_THREADGROUP_BYTES || m.n_arrays == MAX_ARRAYS) {
    m.report->kind = fault_kind::THREADGROUP_MEMORY;
    m.report->bytes = begin + bytes;
    snprintf(m.report->name, sizeof m.report->name, "%s", name);
    stop(m);
  }
  m.used_bytes[group] = uint32_t(begin + bytes);
  m.arrays[m.n_arrays] = {m.memory[group] + begin, m.memory[group] + begin + bytes, -1, key, group, name};
  return &m.arrays[m.n_arrays++];
}

// Rows of an array of two dimensions.
template <class T, size_t N> struct rows {
  ptr<T> first;
  template <class I> ptr<T> operator[](I i) const { return first + ptrdiff_t(i) * ptrdiff_t(N); }
};

template <class A> struct threadgroup_memory {
  static A& of(const region* r) { return *(A*)r->begin; }
  static constexpr size_t align = alignof(A);
};
template <class T, size_t N> struct threadgroup_memory<T[N]> {
  static ptr<T> of(const region* r) { return {(T*)r->begin, r}; }
  static constexpr size_t align = alignof(T) > 16 ? alignof(T) : 16;
};
template <class T, size_t N, size_t M> struct threadgroup_memory<T[N][M]> {
  static rows<T, M> of(const region* r) { return {{(T*)r->begin, r}}; }
  static constexpr size_t align = threadgroup_memory<T[N]>::align;
};

}  // namespace lily

// `threadgroup T name[N];` at kernel scope.
#define LILY_THREADGROUP(T, name, ...)                                                              \
  typedef T name##_lily_type __VA_ARGS__;                                                           \
  static const char name##_lily_key = 0;                                                            \
  auto&& name = ::lily::threadgroup_memory<name##_lily_type>::of(::lily::threadgroup_region(        \
      &name##_lily_key, #name, sizeof(name##_lily_type), ::lily::threadgroup_memory<name##_lily_type>::align))
