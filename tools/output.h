/* SPDX-License-Identifier: Apache-2.0 */
/* Tools whose output cannot be written do not end as if it were there. */
#ifndef NIBBLE_TOOLS_OUTPUT_H
#define NIBBLE_TOOLS_OUTPUT_H

/* At the end of the process, write the rest of stdout. Where that fails, or any write to stdout failed before, print a
 * line on stderr and end with `status`. Call it first in main. */
void output_check(int status);

#endif
