// The control block of a run: two words, the position of the first row and the number of active rows.
#pragma once

// Rows of the chunk that hold tokens. A plan of one row (ONE) always has it active and reads nothing.
template <bool ONE> METAL_FUNC uint active_rows(const device uint* control) {
  if (ONE) return 1;
  return control[1];
}
