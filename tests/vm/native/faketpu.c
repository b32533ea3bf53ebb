// SPDX-License-Identifier: GPL-2.0
/*
 * Gives chosen PCI functions another identity, for tests only: write ADDRESS=VENDOR:DEVICE to
 * /sys/module/faketpu/parameters/identity, such as 0000:00:05.0=1ae0:0063. Everything that asks
 * sysfs or udev then sees that hardware. A function that has a driver is refused (EBUSY), since its
 * driver was chosen by the identity that it has.
 *
 * Also /dev/fakeaccel, of which one page can be mapped as drivers map the memory of a device.
 */
#include <linux/device.h>
#include <linux/fs.h>
#include <linux/gfp.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
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

static struct page *memory;

static int accel_mmap(struct file *file, struct vm_area_struct *area)
{
	if (area->vm_end - area->vm_start != PAGE_SIZE)
		return -EINVAL;
	return remap_pfn_range(area, area->vm_start, page_to_pfn(memory), PAGE_SIZE,
			       area->vm_page_prot);
}

static const struct file_operations accel_operations = {
	.owner = THIS_MODULE,
	.mmap = accel_mmap,
};

static struct miscdevice accel = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "fakeaccel",
	.fops = &accel_operations,
};

static int __init faketpu_init(void)
{
	int result;

	memory = alloc_page(GFP_KERNEL | __GFP_ZERO);
	if (!memory)
		return -ENOMEM;
	result = misc_register(&accel);
	if (result)
		__free_page(memory);
	return result;
}

static void __exit faketpu_exit(void)
{
	misc_deregister(&accel);
	__free_page(memory);
}

module_init(faketpu_init);
module_exit(faketpu_exit);
MODULE_DESCRIPTION("Other identities for PCI functions, for tests");
MODULE_LICENSE("GPL");
