// SPDX-License-Identifier: GPL-2.0
/*
 * Gives chosen PCI functions another identity, for tests only: write ADDRESS=VENDOR:DEVICE to
 * /sys/module/faketpu/parameters/identity, such as 0000:00:05.0=1ae0:0063. Everything that asks
 * sysfs or udev then sees that hardware. A function that has a driver is refused (EBUSY), since its
 * driver was chosen by the identity that it has.
 */
#include <linux/device.h>
#include <linux/module.h>
#include <linux/pci.h>

#define CLASS_PROCESSING_ACCELERATOR 0x120000

static int set_identity(const char *text, const struct kernel_param *param)
{
	unsigned int domain, bus, slot, function, vendor, device;
	struct pci_dev *found;
	int result = 0;

	if (sscanf(text, "%x:%x:%x.%x=%x:%x", &domain, &bus, &slot, &function, &vendor, &device) != 6)
		return -EINVAL;
	found = pci_get_domain_bus_and_slot(domain, bus, PCI_DEVFN(slot, function));
	if (!found)
		return -ENODEV;
	device_lock(&found->dev);
	if (found->dev.driver) {
		result = -EBUSY;
	} else {
		found->vendor = vendor;
		found->device = device;
		found->class = CLASS_PROCESSING_ACCELERATOR;
	}
	device_unlock(&found->dev);
	pci_dev_put(found);
	return result;
}

static const struct kernel_param_ops identity_ops = { .set = set_identity };
module_param_cb(identity, &identity_ops, NULL, 0200);

static int __init faketpu_init(void)
{
	return 0;
}

static void __exit faketpu_exit(void)
{
}

module_init(faketpu_init);
module_exit(faketpu_exit);
MODULE_DESCRIPTION("Other identities for PCI functions, for tests");
MODULE_LICENSE("GPL");
