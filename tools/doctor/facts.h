/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a node tells node 0 about itself, as lines: "fact NAME VALUE" and "check STATUS SUBJECT FOUND REMEDY",
 * tabs between; and what node 0 makes of all nodes' facts.
 */
#ifndef NIBBLE_TOOLS_DOCTOR_FACTS_H
#define NIBBLE_TOOLS_DOCTOR_FACTS_H

#include <stdio.h>

#include "doctor.h"
#include "meet.h"

/* This node's. */
void facts_write(const struct doctor *d, FILE *f);

/* Names of the nodes, "2 (host)", into names[nodes]; of absent ones, "2". */
typedef char node_name[96];
void facts_names(const struct blob *facts, int nodes, node_name *names);
/* Add to the report: nodes that are absent, differences between nodes, and the others' warnings and
 * problems. */
void facts_judge(struct report *report, const struct blob *facts, int nodes, const node_name *names);

#endif
