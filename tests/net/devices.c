/* SPDX-License-Identifier: Apache-2.0 */
/* The list of devices over a made-up transport. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "net/devices.h"
#include "tests/base/capture.h"
#include "tests/suite.h"

static int nics, broken, list_fails, asked, listened, connected, finis;
static const char *same_name;

static int fake_devices(struct nb_net *under, int *n)
{
    (void)under;
    *n = nics;
    return list_fails ? -EIO : 0;
}

static int fake_properties(struct nb_net *under, int dev, struct nb_net_props *p)
{
    (void)under;
    asked++;
    if (dev == broken)
        return -ENODEV;
    if (same_name)
        snprintf(p->name, sizeof(p->name), "%s", same_name);
    else
        snprintf(p->name, sizeof(p->name), "nic%d", dev);
    p->guid = 100 + (uint64_t)dev;
    p->port = 2;
    p->speed_mbps = 400000;
    return 0;
}

static int fake_listen(struct nb_net *under, int dev, void *handle, void **comm)
{
    (void)under;
    (void)handle;
    listened = dev;
    *comm = &listened;
    return 0;
}

static int fake_connect(struct nb_net *under, int dev, const struct nb_net_conn_cfg *cfg, void *handle,
                        void **comm)
{
    (void)under;
    (void)cfg;
    (void)handle;
    connected = dev;
    *comm = &connected;
    return 0;
}

static void fake_fini(struct nb_net *under)
{
    (void)under;
    finis++;
}

static int fake_close(void *comm)
{
    (void)comm;
    return -EXDEV;
}

static const struct nb_net_ops fake_ops = {.name = "fake",
                                           .fini = fake_fini,
                                           .devices = fake_devices,
                                           .properties = fake_properties,
                                           .listen = fake_listen,
                                           .connect = fake_connect,
                                           .close_send = fake_close};
static struct nb_net fake = {.ops = &fake_ops};
static struct nb_net *net;

/* Free the list, and then the transport under it. */
static void done(void)
{
    int before = finis;

    if (!net)
        return;
    net->ops->fini(net);
    net = NULL;
    ck_assert_int_eq(finis, before + 1);
}

static int show(int n, int copies)
{
    int count = -1;

    done();
    nics = n;
    ck_assert_int_eq(nb_devices_open(&fake, copies, &net), 0);
    ck_assert_int_eq(net->ops->devices(net, &count), 0);
    return count;
}

static void setup(void)
{
    broken = -1;
    same_name = NULL;
    capture_reset();
    nb_log_set(capture_log);
}

START_TEST(one_each)
{
    struct nb_net_props p;

    ck_assert_int_eq(show(3, 1), 3);
    ck_assert_str_eq(net->ops->name, "fake");
    ck_assert(net->ops->close_send == fake_close); /* all other functions are the transport's */
    ck_assert_ptr_null(net->ops->abandon);
    for (int i = 0; i < 3; i++) {
        char name[16], handle[NB_NET_HANDLE_BYTES];
        void *comm = NULL;

        snprintf(name, sizeof(name), "nic%d", i);
        ck_assert_int_eq(net->ops->properties(net, i, &p), 0);
        ck_assert_str_eq(p.name, name);
        ck_assert_int_eq(net->ops->listen(net, i, handle, &comm), 0);
        ck_assert_int_eq(net->ops->connect(net, i, NULL, handle, &comm), 0);
        ck_assert(listened == i && connected == i);
    }
    ck_assert_int_eq(asked, 3); /* once: later answers of a NIC do not change the list */
    ck_assert_int_eq(show(0, 8), 0);
    ck_assert_int_eq(net->ops->properties(net, 0, &p), -EINVAL);
}
END_TEST

START_TEST(several_each)
{
    struct nb_net_props p[8];
    char handle[NB_NET_HANDLE_BYTES];
    void *comm = NULL;

    ck_assert_int_eq(show(2, 4), 8);
    for (int i = 0; i < 8; i++) {
        ck_assert_int_eq(net->ops->properties(net, i, &p[i]), 0);
        for (int k = 0; k < i; k++)
            ck_assert_str_ne(p[k].name, p[i].name);
        ck_assert_uint_eq(p[i].guid, 100u + (unsigned)i % 2);
        ck_assert(p[i].port == 2 && p[i].speed_mbps == 400000);
        ck_assert_int_eq(net->ops->listen(net, i, handle, &comm), 0);
        ck_assert_int_eq(net->ops->connect(net, i, NULL, handle, &comm), 0);
        ck_assert(listened == i % 2 && connected == i % 2);
    }
    ck_assert_str_eq(p[1].name, "nic1");
    ck_assert_str_eq(p[3].name, "nic1#1");
    ck_assert_str_eq(p[6].name, "nic0#3");
    ck_assert_int_eq(net->ops->listen(net, 8, handle, &comm), -EINVAL);
    ck_assert_int_eq(net->ops->connect(net, -1, NULL, handle, &comm), -EINVAL);
    ck_assert(capture_has("device 8 is unknown: there are 8"));
}
END_TEST

START_TEST(at_most_64)
{
    ck_assert_int_eq(show(64, 1), 64);
    ck_assert_int_eq(show(8, 8), 64);
    ck_assert_int_eq(capture_warnings, 0);
    ck_assert_int_eq(show(10, 8), 60);
    ck_assert_msg(
        capture_has("NIBBLE_DEVS_PER_NIC=8 with 10 NICs would be 80 devices, NCCL allows 64: 6 per NIC"),
        "%s", capture_text);
    capture_reset();
    ck_assert_int_eq(show(70, 2), 64);
    ck_assert(capture_has("has 70 devices: only the first 64 are used"));
}
END_TEST

START_TEST(a_broken_nic_is_shown)
{
    struct nb_net_props p;

    broken = 1;
    ck_assert_int_eq(show(2, 2), 4);
    ck_assert_int_eq(capture_warnings, 1);
    ck_assert(capture_has("device 1 of transport fake does not report its properties (No such device)"));
    ck_assert_int_eq(net->ops->properties(net, 1, &p), 0);
    ck_assert_str_eq(p.name, "fake1");
    ck_assert_int_gt(p.speed_mbps, 0);
    ck_assert_int_eq(net->ops->properties(net, 3, &p), 0);
    ck_assert_str_eq(p.name, "fake1#1");
    done();
    list_fails = 1;
    ck_assert_int_eq(nb_devices_open(&fake, 1, &net), -EIO);
}
END_TEST

/* NCCL distinguishes devices by name. */
START_TEST(names_differ_always)
{
    struct nb_net_props p[6];

    same_name = "sixty-characters-long-so-that-a-suffix-has-to-cut-something-off";
    ck_assert_int_eq(show(3, 2), 6);
    for (int i = 0; i < 6; i++) {
        ck_assert_int_eq(net->ops->properties(net, i, &p[i]), 0);
        for (int k = 0; k < i; k++)
            ck_assert_str_ne(p[k].name, p[i].name);
    }
}
END_TEST

SUITE_MAIN("devices", FIXTURE(setup, done), TEST(one_each), TEST(several_each), TEST(at_most_64),
           TEST(a_broken_nic_is_shown), TEST(names_differ_always))
