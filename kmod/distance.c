// SPDX-License-Identifier: GPL-2.0
/*
 * Whether two PCI functions reach each other without the processor, how far it is, and why not, in
 * words. Called from the table in main.c; looks at the topology alone and keeps nothing.
 */
#include <linux/pci.h>
#include <linux/pci-p2pdma.h>

#include "internal.h"
#include "peer.h"

/* The bridge that is above both, or one of the two; NULL: they meet at no bridge that we see. */
static struct pci_dev *fm_pci_meeting(struct pci_dev *first, struct pci_dev *second, int *hops)
{
	struct pci_dev *up, *other;
	int here = 0, there;

	for (up = first; up; up = pci_upstream_bridge(up), here++) {
		there = 0;
		for (other = second; other; other = pci_upstream_bridge(other), there++) {
			if (up == other) {
				*hops = here + there;
				return up;
			}
		}
	}
	*hops = -1;
	return NULL;
}

/* The first bridge below @meeting that sends peer-to-peer requests up (ACS); NULL: none does. */
static struct pci_dev *fm_pci_redirector(struct pci_dev *from, struct pci_dev *meeting)
{
	struct pci_dev *up;
	u16 control;
	int place;

	for (up = pci_upstream_bridge(from); up && up != meeting; up = pci_upstream_bridge(up)) {
		place = pci_find_ext_capability(up, PCI_EXT_CAP_ID_ACS);
		if (!place)
			continue;
		pci_read_config_word(up, place + PCI_ACS_CTRL, &control);
		if (control & (PCI_ACS_RR | PCI_ACS_CR | PCI_ACS_EC))
			return up;
	}
	return NULL;
}

static void fm_distance_measure(struct fabricmgr_peer_distance *arg, struct pci_dev *provider,
				struct pci_dev *requester)
{
	struct pci_dev *meeting = fm_pci_meeting(provider, requester, &arg->hops);
	struct pci_dev *redirector = fm_pci_redirector(provider, meeting) ?:
				     fm_pci_redirector(requester, meeting);
	bool is_near = meeting && !redirector;

	if (IS_ENABLED(CONFIG_PCI_P2PDMA))
		arg->distance = pci_p2pdma_distance(provider, &requester->dev, false);
	else
		arg->distance = is_near ? arg->hops : -1;
	if (arg->distance >= 0 && IS_ENABLED(CONFIG_PCI_P2PDMA)) {
		arg->reason = FABRICMGR_DISTANCE_OK;
		snprintf(arg->text, sizeof(arg->text), "the kernel maps %s for %s%s",
			 pci_name(provider), pci_name(requester),
			 is_near ? "" : " through the host bridge");
	} else if (is_near) {
		arg->reason = FABRICMGR_DISTANCE_NO_KERNEL_SUPPORT;
		snprintf(arg->text, sizeof(arg->text),
			 "they meet below %s, but the kernel does no peer-to-peer DMA",
			 pci_name(meeting));
	} else if (redirector) {
		arg->reason = FABRICMGR_DISTANCE_ACS_REDIRECT;
		snprintf(arg->text, sizeof(arg->text),
			 "the bridge %s sends requests between peers up (ACS)",
			 pci_name(redirector));
	} else {
		arg->reason = FABRICMGR_DISTANCE_HOST_BRIDGE;
		snprintf(arg->text, sizeof(arg->text),
			 "%s and %s meet at no bridge but the host's", pci_name(provider),
			 pci_name(requester));
	}
}

long fm_peer_distance(struct fm_client *client, void *argument)
{
	struct fabricmgr_peer_distance *arg = argument;
	struct pci_dev *provider, *requester;

	if (arg->reserved || arg->provider.reserved || arg->requester.reserved)
		return -EINVAL;
	provider = fm_pci_find(&arg->provider);
	requester = fm_pci_find(&arg->requester);
	memset(arg->text, 0, sizeof(arg->text));
	if (provider && requester) {
		fm_distance_measure(arg, provider, requester);
	} else {
		arg->distance = -1;
		arg->hops = -1;
		arg->reason = FABRICMGR_DISTANCE_NO_SUCH_DEVICE;
		snprintf(arg->text, sizeof(arg->text), "the %s is not there",
			 provider ? "requester" : "provider");
	}
	pci_dev_put(provider);
	pci_dev_put(requester);
	return 0;
}
