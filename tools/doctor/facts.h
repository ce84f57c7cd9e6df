/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A node's report to node 0 about itself, as lines: "fact NAME VALUE" and "check STATUS SUBJECT FOUND
 * REMEDY", tabs between. Then node 0's judgement of all nodes' facts.
 */
#ifndef NIBBLE_TOOLS_DOCTOR_FACTS_H
#define NIBBLE_TOOLS_DOCTOR_FACTS_H

#include <stdio.h>

#include "doctor.h"
#include "meet.h"

/* Write this node's facts. */
void facts_write(const struct doctor *d, FILE *f);

/* Name of a node, "2 (host)". An absent node has "2". */
typedef char node_name[96];
void facts_names(const struct blob *facts, int nodes, node_name *names);
/* Take the slower of *all and the nodes' links and codecs, which the nodes of a job reckon with. */
void facts_slowest(const struct blob *facts, int nodes, struct nb_reckon_facts *all);
/* Add to the report: absent nodes, differences between nodes, and the other nodes' warnings and problems. */
void facts_judge(struct report *report, const struct blob *facts, int nodes, const node_name *names);

#endif
